// kernels/include/grid_flags.cuh on the CPU, where blocks run one after the other.
#pragma once

inline unsigned read_flag(const unsigned* flag) {
    give_way();  // to another thread of the block that may write it
    return *flag;
}
inline void write_flag(unsigned* flag, unsigned value) { *flag = value; }

inline unsigned read_now(const unsigned* counter) { return *counter; }

inline void add_quad(float* to, float4 quad) {
    if (size_t(to) % 16) std::abort();
    to[0] += quad.x;
    to[1] += quad.y;
    to[2] += quad.z;
    to[3] += quad.w;
}
