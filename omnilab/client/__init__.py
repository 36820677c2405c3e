"""A client of servers that speak the OpenAI omni protocol. Times are the socket's; audio is decoded afterwards."""

from omnilab.client.ready import served_models, wait_ready
from omnilab.client.server import ServedTrial, Server, Stopped

__all__ = ["ServedTrial", "Server", "Stopped", "served_models", "wait_ready"]
