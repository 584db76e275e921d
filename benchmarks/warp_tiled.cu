/*
title = "Warp tiles, plain pointers"
entry = "warp_tiled"
precisions = ["fp32"]
layouts = ["nn"]
block = [128]
tile = [128, 128]
constraints = { M = 128, N = 128, K = 16 }
access_bytes = 16
*/

/*
A kernel as people write it, for benchmarks/compilers.py: it reads shared memory through plain
pointers. nvcc keeps such addresses in 32 bits and joins the reads of `a` to vectors; NVRTC keeps
them in 64 and does not. After the well-known SGEMM tutorials: a block computes 128 x 128 of C, each
of its four warps 64 x 64, each thread 4 pieces of 8 x 4.
*/

constexpr unsigned BM = 128, BN = 128, BK = 16;
constexpr unsigned WM = 64, WN = 64, TM = 8, TN = 4;
constexpr unsigned PIECES_N = 4, PIECE_N = WN / PIECES_N;

// A tile of A, transposed, and a tile of B to shared memory.
__device__ void load(const float* A, const float* B, int N, int K, float* a, float* b) {
    const unsigned row = threadIdx.x / 4, column = threadIdx.x % 4 * 4;
    for (unsigned i = 0; i < BM; i += 32) {
        const float4 v = *reinterpret_cast<const float4*>(A + size_t(row + i) * K + column);
        a[(column + 0) * BM + row + i] = v.x;
        a[(column + 1) * BM + row + i] = v.y;
        a[(column + 2) * BM + row + i] = v.z;
        a[(column + 3) * BM + row + i] = v.w;
    }
    const unsigned k = threadIdx.x / 32, n = threadIdx.x % 32 * 4;
    for (unsigned i = 0; i < BK; i += 4) {
        *reinterpret_cast<float4*>(b + (k + i) * BN + n) =
            *reinterpret_cast<const float4*>(B + size_t(k + i) * N + n);
    }
}

__device__ void multiply(const float* a, const float* b, float (&sum)[TM][PIECES_N * TN]) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned m = warp / 2 * WM + lane / 4 * TM, n = warp % 2 * WN + lane % 4 * TN;
    for (unsigned k = 0; k < BK; ++k) {
        float left[TM], right[PIECES_N * TN];
        for (unsigned i = 0; i < TM; ++i) left[i] = a[k * BM + m + i];
        for (unsigned piece = 0; piece < PIECES_N; ++piece) {
            for (unsigned j = 0; j < TN; ++j) {
                right[piece * TN + j] = b[k * BN + n + piece * PIECE_N + j];
            }
        }
        for (unsigned i = 0; i < TM; ++i) {
            for (unsigned j = 0; j < PIECES_N * TN; ++j) sum[i][j] += left[i] * right[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128)
warp_tiled(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    __shared__ float a[BK * BM];
    __shared__ __align__(16) float b[BK * BN];

    A += size_t(blockIdx.y) * BM * K;
    B += blockIdx.x * BN;
    float sum[TM][PIECES_N * TN] = {};
    for (int k = 0; k < K; k += BK) {
        load(A + k, B + size_t(k) * N, N, K, a, b);
        __syncthreads();
        multiply(a, b, sum);
        __syncthreads();
    }

    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned m = blockIdx.y * BM + warp / 2 * WM + lane / 4 * TM;
    const unsigned n = blockIdx.x * BN + warp % 2 * WN + lane % 4 * TN;
    for (unsigned i = 0; i < TM; ++i) {
        for (unsigned j = 0; j < PIECES_N * TN; ++j) {
            const size_t at = size_t(m + i) * N + n + j / TN * PIECE_N + j % TN;
            C[at] = alpha * sum[i][j] + (beta != 0 ? beta * C[at] : 0);
        }
    }
}
