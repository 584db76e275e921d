// Microkernels that reach the limits of a GPU: memory levels and pipes. Compiled by NVRTC.
//
// Loads are PTX, so that the compiler keeps exactly these instructions. A result is stored under a
// condition that does not hold, so that it cannot remove them.

constexpr float NEVER = 1.25f;

__device__ inline float sum(float4 v) { return v.x + v.y + v.z + v.w; }

// Memory -----------------------------------------------------------------------------------------

// Each block reads its own lines of `data`, `passes` times. From L2 if they all fit there, because
// ld.cg does not use L1, else from DRAM.
extern "C" __global__ void __launch_bounds__(1024)
read_memory(const float4* data, long long count, int passes, float* out) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    float total = 0;
    for (int pass = 0; pass < passes; ++pass) {
        #pragma unroll 8
        for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            float4 v;
            asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(data + i));
            total += sum(v);
        }
    }
    if (total == NEVER) *out = total;
}

extern "C" __global__ void __launch_bounds__(1024)
write_memory(float4* data, long long count) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        data[i] = make_float4(i, 1, 2, 3);
    }
}

// Each block reads `count` elements of its own, which fit in its L1, `passes` times.
extern "C" __global__ void __launch_bounds__(1024)
read_l1(const float4* data, int count, int passes, float* out) {
    float total = 0;
    for (int pass = 0; pass < passes; ++pass) {
        #pragma unroll 4
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            float4 v;
            asm volatile("ld.global.ca.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                         : "l"(data + static_cast<long long>(blockIdx.x) * count + i));
            total += sum(v);
        }
    }
    if (total == NEVER) *out = total;
}

extern "C" __global__ void __launch_bounds__(1024)
read_shared(int passes, float* out) {
    __shared__ float4 data[2048];
    data[threadIdx.x] = data[threadIdx.x + 1024] = make_float4(1, 2, 3, 4);
    __syncthreads();
    const unsigned address = __cvta_generic_to_shared(data + threadIdx.x);
    float total = 0;
    #pragma unroll 8
    for (int pass = 0; pass < passes; ++pass) {
        float4 v;
        asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(address + (pass & 1) * 16384));
        total += sum(v);
    }
    if (total == NEVER) *out = total;
}

// Arithmetic -------------------------------------------------------------------------------------

constexpr int CHAINS = 16;  // independent, because an FMA has a latency of four cycles or more

template <typename Number>
__device__ inline void fma_chains(int steps, Number factor, Number addend, Number* out) {
    Number x[CHAINS];
    for (int i = 0; i < CHAINS; ++i) x[i] = static_cast<Number>(i + threadIdx.x);
    #pragma unroll 16  // the loop's own instructions take slots of the scheduler
    for (int step = 0; step < steps; ++step) {
        #pragma unroll
        for (int i = 0; i < CHAINS; ++i) x[i] = x[i] * factor + addend;
    }
    Number total = 0;
    for (int i = 0; i < CHAINS; ++i) total += x[i];
    if (total == static_cast<Number>(NEVER)) *out = total;
}

extern "C" __global__ void __launch_bounds__(512)
fma_fp32(int steps, float factor, float addend, float* out) {
    fma_chains(steps, factor, addend, out);
}

extern "C" __global__ void __launch_bounds__(512)
fma_fp64(int steps, double factor, double addend, double* out) {
    fma_chains(steps, factor, addend, out);
}
