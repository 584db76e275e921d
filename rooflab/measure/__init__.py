"""From kernels and a problem to verified times. Uses devices, writes no files of a run."""
