"""The load generator: processes that send a schedule to an OpenAI-compatible server and note what comes back, when."""

from sre.adapters.load.generator import HttpLoad

__all__ = ["HttpLoad"]
