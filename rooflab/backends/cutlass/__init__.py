"""NVIDIA's CUTLASS: templates of GEMM kernels, planned on the device. No host compiler."""
