// What all programs include: compiled once for all kernels.
#include "cuda.hpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <tuple>
#include <type_traits>
#include <vector>
