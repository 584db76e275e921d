// The rate of Hopper's tensor cores: wgmma on operands in shared memory, and nothing else.
//
// Two warpgroups per block multiply 64 x K by K x 256 again and again, with K = 32 bytes. All
// operands are 1, so each element of D is the number of products, whatever the layout.

// The descriptor of an operand without swizzle (PTX ISA, "Matrix Descriptor Format"): core matrices
// of 8 rows x 16 bytes, 128 bytes apart along K and 256 along M or N.
__device__ inline unsigned long long descriptor(const void* operand) {
    const unsigned long long address = __cvta_generic_to_shared(operand);
    return (address >> 4 & 0x3fff) | (128ull >> 4) << 16 | (256ull >> 4) << 32;
}

#define ACCUMULATORS \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
    "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
    "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, " \
    "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, " \
    "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127 "

#define FOUR(how, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define SIXTEEN(how, i) FOUR(how, i), FOUR(how, i + 4), FOUR(how, i + 8), FOUR(how, i + 12)
#define ALL(how)                                                                                \
    SIXTEEN(how, 0), SIXTEEN(how, 16), SIXTEEN(how, 32), SIXTEEN(how, 48), SIXTEEN(how, 64),    \
        SIXTEEN(how, 80), SIXTEEN(how, 96), SIXTEEN(how, 112)

// `scales` are the factors and transpositions after the predicate that adds to D.
#define KERNEL(name, Number, how, shape, scales)                                                \
    extern "C" __global__ void __launch_bounds__(256, 1)                                        \
    name(int steps, unsigned ones, Number* out) {                                               \
        __shared__ __align__(128) unsigned operands[2][2560];                                   \
        for (int i = threadIdx.x; i < 2560; i += blockDim.x) operands[0][i] = operands[1][i] = ones; \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                            \
        __syncthreads();                                                                        \
        const unsigned long long a = descriptor(operands[threadIdx.x / 128]);                   \
        const unsigned long long b = descriptor(operands[threadIdx.x / 128] + 512);             \
        Number d[128] = {};                                                                     \
        for (int step = 0; step < steps; step += 4) {                                           \
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                             \
            for (int i = 0; i < 4; ++i) {                                                       \
                asm volatile("wgmma.mma_async.sync.aligned." shape " {" ACCUMULATORS            \
                             "}, %128, %129, 1" scales ";"                                      \
                             : ALL(how) : "l"(a), "l"(b));                                      \
            }                                                                                   \
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                      \
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                      \
        }                                                                                       \
        Number total = 0;                                                                       \
        for (int i = 0; i < 128; ++i) total += d[i];                                            \
        out[blockIdx.x * blockDim.x + threadIdx.x] = total / 128;                               \
    }

#define FLOAT(x) "+f"(x)
#define INTEGER(x) "+r"(x)

KERNEL(wgmma_bf16, float, FLOAT, "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
KERNEL(wgmma_fp16, float, FLOAT, "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
KERNEL(wgmma_tf32, float, FLOAT, "m64n256k8.f32.tf32.tf32", ", 1, 1")
KERNEL(wgmma_fp8, float, FLOAT, "m64n256k32.f32.e4m3.e4m3", ", 1, 1")
KERNEL(wgmma_int8, int, INTEGER, "m64n256k32.s32.s8.s8", "")
