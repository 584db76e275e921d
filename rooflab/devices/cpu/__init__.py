"""The CPU of this machine: the device, its facts, its roofs."""
