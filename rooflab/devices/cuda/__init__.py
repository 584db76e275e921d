"""NVIDIA GPUs: the device, its driver, its compiler, its roofs."""
