"""Envoy as the gateway: what is on disk before it starts, and the Gateway port while it runs."""

from sre.adapters.envoy.gateway import EnvoyGateway
from sre.adapters.envoy.prepare import find_envoy, prepare

__all__ = ["EnvoyGateway", "find_envoy", "prepare"]
