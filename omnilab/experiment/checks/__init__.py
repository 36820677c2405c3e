"""Is a run what it says? Verifying, packing and comparing run folders."""
