/*
title = "One element of C is off by a typical element's size"
entry = "element_wrong"
precisions = ["fp32"]
layouts = ["nn"]
block = [16, 16]
tile = [16, 16]
batched = true
*/

extern "C" __global__ void __launch_bounds__(256)
element_wrong(int M, int N, int K, float alpha, const float* A, const float* B,
              float beta, float* C) {
    __shared__ float a[16][16], b[16][16];
    const int x = threadIdx.x, y = threadIdx.y;
    const int m = blockIdx.y * 16 + y, n = blockIdx.x * 16 + x;
    A += blockIdx.z * size_t(M) * K;
    B += blockIdx.z * size_t(K) * N;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
        a[y][x] = m < M && k + x < K ? A[size_t(m) * K + k + x] : 0;
        b[y][x] = k + y < K && n < N ? B[size_t(k + y) * N + n] : 0;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    if (m >= M || n >= N) return;
    float* c = C + (blockIdx.z * size_t(M) + m) * N + n;
    const bool wrong = m == M * 2 / 7 && n == N * 3 / 5 && blockIdx.z == gridDim.z / 3;
    *c = alpha * (sum + (wrong ? sqrtf(K) / 3 : 0)) + (beta != 0 ? beta * *c : 0);
}
