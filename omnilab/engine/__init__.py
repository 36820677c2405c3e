"""A stage: scheduler, runner, sender, receiver, and the loop that joins them."""
