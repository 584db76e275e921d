"""Verified times of kernels on a problem. Uses devices; does not write run files."""
