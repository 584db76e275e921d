"""Kernels of libraries: cuBLAS, cuFFT, NCCL, CuPy, NumPy; and loops in Numba for the CPU."""
