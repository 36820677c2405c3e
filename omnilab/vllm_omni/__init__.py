"""The real vLLM-Omni as a subject: a CPU platform, toggles on its own code, its server. No torch at the top."""
