"""vLLM-Omni without a GPU: a platform and workers. Imported by vLLM-Omni alone, by name."""
