"""See inside: traces, timelines and critical paths, from spans and from profilers."""
