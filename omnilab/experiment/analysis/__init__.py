"""From the rows of a run to findings. Draws nothing, needs no torch."""
