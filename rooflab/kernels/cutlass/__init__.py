"""NVIDIA's CUTLASS: GEMM templates, with launches planned on the device, not by a host compiler."""
