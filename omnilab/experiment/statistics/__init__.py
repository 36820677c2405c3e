"""Numbers over blocks: estimates, contrasts, power. Needs numpy and scipy, nothing of omnilab."""
