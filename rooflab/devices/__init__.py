"""Devices: the interface, the GPUs and the CPU of this machine."""
