"""From kernels and a problem to verified times. Knows devices, knows no files."""
