"""Serving: what a running pipeline says of itself, and the server that says it."""
