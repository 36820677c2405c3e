"""Scripts that print ratios of one run. Never part of the tests: machines are noisy."""
