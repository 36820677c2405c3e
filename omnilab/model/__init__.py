"""The network, one step at a time: sizes, weights, slot cache, Thinker, Talker, Code2Wav. Import modules by name."""
