"""Experiments: designs, the protocol that measures them, the output gate, statistics and the report."""
