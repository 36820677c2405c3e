"""Our tab in TensorBoard: verdicts, time by stage, timelines, sounds and traces of runs, without a network."""
