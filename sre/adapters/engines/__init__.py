"""Engines we start: how, and with what."""
