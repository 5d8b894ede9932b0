"""
Reads engines, gateway, host and GPUs around a stage of the gate.

Everything is best effort: what cannot be seen stands in ``unseen`` with its reason, and nothing is raised. Of a server
without any /metrics page only the way to it is known. Pages are read twice a second, and only the lines that are wanted
are parsed: the load generator may share the event loop.
"""

from sre.adapters.gate_signals.reader import GateSignals

__all__ = ["GateSignals"]
