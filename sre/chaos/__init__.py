"""Fault injection, the pure part: what a fault is, whether it may be injected, its plan, its verdict."""
