// The entries of a CUTLASS 2.x kernel: include after `GemmKernel`, a cutlass::gemm::kernel::
// GemmUniversal, is defined. See cutlass_plan.cuh.
#pragma once

#include "cutlass_plan.cuh"

// Blocks that must fit on a multiprocessor; this limits the registers of a thread.
#ifndef BLOCKS
#define BLOCKS 1
#endif

static_assert(sizeof(GemmKernel::Params) <= PARAMS_LIMIT, "too many kernel parameters");

extern "C" __global__ void plan(Problem problem, GemmKernel::Params* params_out, Report* report) {
    using cutlass::gemm::GemmUniversalMode;
    const int M = problem.M, N = problem.N, K = problem.K;

    // The grid's z numbers the matrices of a batch, or the parts of a split K. Blocks add the parts
    // to C one after the other, ordered by semaphores in the workspace, which end at zero.
    const bool batched = problem.batch > 1;
    const GemmKernel::Arguments arguments(
        batched ? GemmUniversalMode::kBatched : GemmUniversalMode::kGemm, {M, N, K},
        batched ? problem.batch : problem.splits, {problem.alpha, problem.beta},
        problem.A, problem.B, problem.C, problem.C,
        int64_t(M) * K, int64_t(K) * N, int64_t(M) * N, int64_t(M) * N,
        leading_a(M, K), leading_b(N, K), N, N);

    // The number of multiprocessors is for stream-K, which these kernels do not use.
    GemmKernel::Params params(arguments, problem.multiprocessors, 1);
    params.semaphore = static_cast<int*>(problem.workspace);
    *params_out = params;

    Report answer{};
    answer.magic = REPORT_MAGIC;
    answer.takes_problem = GemmKernel::can_implement(arguments) == cutlass::Status::kSuccess;
    answer.params_bytes = sizeof(params);
    answer.shared_bytes = sizeof(GemmKernel::SharedStorage);
    answer.threads = GemmKernel::kThreadCount;
    const dim3 grid = params.get_grid_dims();
    answer.grid[0] = grid.x;
    answer.grid[1] = grid.y;
    answer.grid[2] = grid.z;
    for (unsigned& extent : answer.cluster) extent = 1;
    answer.workspace_bytes = params.get_workspace_size();
    report_pointer(answer, params, params.ptr_A, OPERAND_A);
    report_pointer(answer, params, params.ptr_B, OPERAND_B);
    report_pointer(answer, params, params.ptr_C, OPERAND_C);
    report_pointer(answer, params, params.ptr_D, OPERAND_C);
    *report = answer;
}

extern "C" __global__ void __launch_bounds__(GemmKernel::kThreadCount, BLOCKS)
gemm(const __grid_constant__ GemmKernel::Params params) {
    extern __shared__ __align__(16) char shared[];
    GemmKernel kernel;
    kernel(params, *reinterpret_cast<GemmKernel::SharedStorage*>(shared));
}
