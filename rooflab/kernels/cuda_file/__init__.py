"""Kernels from .cu files: their headers, arguments and launches."""
