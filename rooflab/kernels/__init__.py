"""Kernels: what one is, where they come from, and all that are known."""
