// kernels/include/exponential.cuh on the CPU.
#pragma once

#include <cmath>

inline float power_of_two(float x) { return std::exp2(x); }
inline double power_of_two(double x) { return std::exp2(x); }
