"""How payloads cross an edge: their bytes, the connectors that carry them, and the bell that says so."""

from omnilab.transfer.connector import (
    Connector,
    EdgeFolder,
    EdgeFull,
    MemoryConnector,
    SharedMemoryConnector,
    sweep,
)
from omnilab.transfer.doorbell import Bells, Doorbell
from omnilab.transfer.encoding import Buffer, decode, encode, nbytes

__all__ = [
    "Bells",
    "Buffer",
    "Connector",
    "Doorbell",
    "EdgeFolder",
    "EdgeFull",
    "MemoryConnector",
    "SharedMemoryConnector",
    "decode",
    "encode",
    "nbytes",
    "sweep",
]
