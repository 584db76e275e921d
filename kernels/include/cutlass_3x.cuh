// The entries of a CUTLASS 3.x kernel for Hopper: include after `GemmKernel`, a
// cutlass::gemm::kernel::GemmUniversal of collectives that load by TMA, is defined. See
// cutlass_plan.cuh.
#pragma once

#include "cutlass_plan.cuh"

#include "cute/tensor.hpp"

using Mainloop = GemmKernel::CollectiveMainloop;
using Epilogue = GemmKernel::CollectiveEpilogue;
using Scheduler = GemmKernel::TileScheduler;
using TileShape = GemmKernel::TileShape;
using ClusterShape = GemmKernel::ClusterShape;

static_assert(sizeof(GemmKernel::Params) <= PARAMS_LIMIT, "too many kernel parameters");

// The stride of packed matrices that are `leading` elements wide. The type shows which of the first
// two modes is contiguous.
template <typename Stride>
inline Stride packed(int leading, int64_t matrix) {
    Stride stride;
    if constexpr (cute::is_static_v<cute::tuple_element_t<0, Stride>>) {
        cute::get<1>(stride) = leading;
    } else {
        cute::get<0>(stride) = leading;
    }
    cute::get<2>(stride) = matrix;
    return stride;
}

// CUtensorMapDataType of CUDA's driver interface.
template <typename T>
constexpr unsigned tensor_map_type() {
    if constexpr (cute::is_same_v<T, cutlass::tfloat32_t>) return 11;
    if constexpr (cute::is_same_v<T, float>) return 7;
    // Other types are only copied: an integer of the same size is enough.
    if constexpr (sizeof(T) == 4) return 2;
    if constexpr (sizeof(T) == 2) return 1;
    return 0;
}

// Reports the arguments that make_tma_copy would pass to cuTensorMapEncodeTiled, a host function.
// The type of the copy gives the box and the swizzle; `shape` and `stride` give the extents and
// strides. Each of `multicast` blocks loads its part of the box for all of them.
template <class Operation, class Bits, class Aux, class Value, class... Rest, class Params,
          class Shape, class Stride>
inline void report_descriptor(
    Report& report, const Params& params,
    const cute::TiledCopy<cute::Copy_Atom<cute::Copy_Traits<Operation, Bits, Aux>, Value>, Rest...>&
        copy,
    Operand operand, unsigned multicast, Shape shape, Stride stride) {
    using Basis = typename Aux::TmaGmemBasis;
    constexpr int rank = decltype(cute::rank(Basis{}))::value;
    static_assert(rank <= 5, "a tensor map has at most five dimensions");
    static_assert(cute::detail::get_tma_swizzle_base(typename Aux::TmaSwizzle{}) ==
                      cute::TMA::SmemSwizzleBase::SWIZZLE_BASE_16B,
                  "the host supports only swizzles of 16-byte atoms");

    Descriptor answer{};
    answer.offset = offset_in(params, *copy.get_tma_descriptor());
    answer.operand = operand;
    answer.data_type = tensor_map_type<Value>();
    answer.rank = rank;
    answer.swizzle = unsigned(cute::detail::get_tma_swizzle_bits(typename Aux::TmaSwizzle{}));

    const auto matrix =
        cute::make_tensor(static_cast<const Value*>(nullptr), cute::make_layout(shape, stride));
    cute::array<uint64_t, 5> extents{1, 1, 1, 1, 1}, strides{};
    cute::detail::fill_tma_gmem_shape_stride(matrix, cute::stride(Basis{}), extents, strides);
    cute::for_each(cute::make_seq<rank>{}, [&](auto i) {
        answer.box[i] = unsigned(cute::size<decltype(i)::value>(Basis{}));
    });
    for (int i = 0; i < rank; ++i) {
        answer.extents[i] = extents[i];
        if (i > 0) answer.strides[i - 1] = strides[i] * sizeof(Value);
    }
    // The blocks divide the box along its outermost dimensions.
    for (int i = rank - 1; multicast > 1 && i >= 0; --i) {
        const unsigned whole = answer.box[i];
        answer.box[i] = cute::ceil_div(whole, multicast);
        multicast = cute::ceil_div(multicast, whole);
    }
    report.descriptor[report.descriptors++] = answer;
}

// Only the cooperative kernel has a second copy of the workspace's address.
template <class Params>
inline auto set_workspace(Params& params, void* workspace, int)
    -> decltype(void(params.workspace)) {
    params.workspace = workspace;
}
template <class Params>
inline void set_workspace(Params&, void*, long) {}

// Only the kernels of cutlass_early.cuh scale their sums without CUTLASS's fusions.
template <class Params>
inline auto set_alpha(Params& params, float alpha, int) -> decltype(void(params.alpha)) {
    params.alpha = alpha;
}
template <class Params>
inline void set_alpha(Params&, float, long) {}

template <class Arguments>
inline void set_splits(Arguments& scheduler, int splits) {
    if constexpr (STREAM_K) scheduler.splits = splits;
}

inline GemmKernel::Arguments arguments_of(const Problem& problem) {
    const int M = problem.M, N = problem.N, K = problem.K;
    GemmKernel::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {M, N, K, problem.batch};
    arguments.mainloop.ptr_A = static_cast<const GemmKernel::ElementA*>(problem.A);
    arguments.mainloop.ptr_B = static_cast<const GemmKernel::ElementB*>(problem.B);
    arguments.mainloop.dA = packed<GemmKernel::StrideA>(leading_a(M, K), int64_t(M) * K);
    arguments.mainloop.dB = packed<GemmKernel::StrideB>(leading_b(N, K), int64_t(K) * N);
    arguments.epilogue.ptr_C = static_cast<const Output*>(problem.C);
    arguments.epilogue.ptr_D = static_cast<Output*>(problem.C);
    arguments.epilogue.dC = packed<GemmKernel::StrideC>(N, int64_t(M) * N);
    arguments.epilogue.dD = packed<GemmKernel::StrideD>(N, int64_t(M) * N);
    arguments.epilogue.thread.alpha = problem.alpha;
    arguments.epilogue.thread.beta = problem.beta;
    arguments.hw_info.sm_count = problem.multiprocessors;
    arguments.hw_info.max_active_clusters = problem.active_clusters;
    using RasterOrder = decltype(arguments.scheduler.raster_order);
    arguments.scheduler.raster_order = problem.raster == 1   ? RasterOrder::AlongM
                                       : problem.raster == 2 ? RasterOrder::AlongN
                                                             : RasterOrder::Heuristic;
    arguments.scheduler.max_swizzle_size = problem.swizzle;
    set_splits(arguments.scheduler, problem.splits);
    return arguments;
}

// Stream-K adds up the parts of a tile in the workspace, followed by the counters that order them.
// CUTLASS computes the size in host code only; its kernel expects the counters at this offset.
template <class Params>
inline void report_workspace(Report& report, const Params& scheduler) {
    if constexpr (STREAM_K) {
        const uint64_t tiles = scheduler.divmod_splits_.divisor > 1 ? scheduler.units_per_problem_
                                                                    : scheduler.sk_tiles_;
        report.zeroed_offset = Params::get_reduction_workspace_size(
            tiles, cutlass::gemm::to_gemm_coord(TileShape{}), 32);
        report.zeroed_bytes =
            Params::get_barrier_workspace_size(tiles, GemmKernel::NumMmaWarpGroups, 32);
        report.workspace_bytes = report.zeroed_offset + report.zeroed_bytes;
    }
}

// The place of C in Params: TMA descriptors, or addresses.
template <class Params, class Arguments>
inline void report_epilogue(Report& report, const Problem& problem, const Params& params,
                            const Arguments& arguments) {
    const auto shape = cute::make_shape(problem.M, problem.N, problem.batch);
    if constexpr (DIRECT) {
        report_pointer(report, params, params.epilogue.ptr_C, OPERAND_C);
        report_pointer(report, params, params.epilogue.ptr_D, OPERAND_C);
    } else {
        report_descriptor(report, params, params.epilogue.tma_store_d, OPERAND_C, 1, shape,
                          arguments.dD);
    }
    if constexpr (!DIRECT && ROOFLAB_READS_C) {
        report_descriptor(report, params, params.epilogue.tma_load_c, OPERAND_C, 1, shape,
                          arguments.dC);
    }
}

extern "C" __global__ void plan(Problem problem, GemmKernel::Params* params_out, Report* report) {
    const int M = problem.M, N = problem.N, K = problem.K;
    const GemmKernel::Arguments arguments = arguments_of(problem);
    GemmKernel::Params& params = *params_out;

    // The same as GemmKernel::to_underlying_arguments, which does not compile here: it calls CUDA's
    // host library if the number of multiprocessors is not given.
    params.mode = arguments.mode;
    params.problem_shape = arguments.problem_shape;
    params.mainloop = Mainloop::to_underlying_arguments(arguments.problem_shape,
                                                        arguments.mainloop, nullptr);
    params.epilogue = Epilogue::to_underlying_arguments(arguments.problem_shape,
                                                        arguments.epilogue, nullptr);
    params.hw_info = arguments.hw_info;
    params.scheduler = Scheduler::to_underlying_arguments(
        arguments.problem_shape, TileShape{}, ClusterShape{}, arguments.hw_info,
        arguments.scheduler, problem.workspace, Epilogue::get_store_pipe_increment(TileShape{}));
    set_workspace(params, problem.workspace, 0);
    set_alpha(params, problem.alpha, 0);

    Report answer{};
    answer.magic = REPORT_MAGIC;
    answer.takes_problem = GemmKernel::can_implement(arguments);
    answer.params_bytes = sizeof(params);
    answer.shared_bytes = GemmKernel::SharedStorageSize;
    answer.threads = GemmKernel::MaxThreadsPerBlock;
    const dim3 grid = GemmKernel::get_grid_shape(params);
    answer.grid[0] = grid.x;
    answer.grid[1] = grid.y;
    answer.grid[2] = grid.z;
    answer.cluster[0] = cute::size<0>(ClusterShape{});
    answer.cluster[1] = cute::size<1>(ClusterShape{});
    answer.cluster[2] = 1;
    report_workspace(answer, params.scheduler);

    // A block's tile of A is also used in the cluster's other columns, its tile of B in the other
    // rows.
    report_descriptor(answer, params, params.mainloop.tma_load_a, OPERAND_A, answer.cluster[1],
                      cute::make_shape(M, K, problem.batch), arguments.mainloop.dA);
    report_descriptor(answer, params, params.mainloop.tma_load_b, OPERAND_B, answer.cluster[0],
                      cute::make_shape(N, K, problem.batch), arguments.mainloop.dB);
    report_epilogue(answer, problem, params, arguments.epilogue);
    *report = answer;
}

extern "C" __global__ void __cluster_dims__(cute::size<0>(ClusterShape{}),
                                            cute::size<1>(ClusterShape{}), 1)
    __launch_bounds__(GemmKernel::MaxThreadsPerBlock, 1)
gemm(const __grid_constant__ GemmKernel::Params params) {
    extern __shared__ char shared[];
    GemmKernel kernel;
    kernel(params, shared);
}
