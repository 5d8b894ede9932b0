"""Resilience toolkit for LLM serving on vLLM: see, contain, tell, roll back, prove."""

__version__ = "0.1.0"
