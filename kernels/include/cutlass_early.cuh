// CUTLASS's persistent Hopper kernels with a faster beginning and end, for launches that do not
// read C. The collectives, which load and multiply, are CUTLASS's.
//
// CUTLASS's main loop keeps the tensor cores busy without a gap: at 2048 in BF16, two tiles of
// 128x128 take 2 x 16,384 cycles per multiprocessor. Only the time before the first product and
// after the last one can be saved.
//
// The beginning. A load needs barriers that the whole cluster can see, and the tile's coordinates.
// - One warp sets up only the barriers of the loads' pipeline, while another fetches the TMA
//   descriptors. Two groups that take turns use the hardware's named barriers, which need no
//   set-up.
// - 32-bit divisions compute a tile's coordinates, from five numbers in two cache lines of the
//   kernel's parameters. The first access to each line misses.
// - Registers are reallocated, and consumers prepare, after the first load has started.
//
// The end. Each part of the tile goes to shared memory, and TMA stores it while the next part is
// rounded. A part needs one barrier; CUTLASS has two. With ping-pong a part's rows are 128 bytes
// long: outputs of 16 bits need half as many parts.
//
// Time falls by less than cycles do: busy tensor cores lower the clock, below the clock that NVML
// reports (docs/measurement.md).
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"

template <class Kernel>
struct Early : Kernel {
    using Mainloop = typename Kernel::CollectiveMainloop;
    using Epilogue = typename Kernel::CollectiveEpilogue;
    using Pipeline = typename Mainloop::MainloopPipeline;
    using Barrier = cutlass::arch::NamedBarrier;
    using SharedStorage = typename Kernel::SharedStorage;
    using TileShape = typename Kernel::TileShape;
    using Cluster = typename Kernel::ClusterShape;

    static constexpr int GROUP = 128;
    // Ping-pong: each group multiplies a separate tile. Otherwise both share one.
    static constexpr bool PING_PONG = cute::size(typename Kernel::TiledMma{}) == GROUP;
    static constexpr int TURNS = PING_PONG ? 2 : 1;
    static constexpr int THREADS_PER_TILE = PING_PONG ? GROUP : 2 * GROUP;

    struct Params : Kernel::Params {
        float alpha;
    };

    // The tiles that a block computes: those of its cluster, in CUTLASS's order. Clusters walk
    // along the major direction, in strips that are 2^log_swizzle clusters wide.
    class Walk {
    public:
        inline explicit Walk(const Params& params) {
            using Order = typename Kernel::TileScheduler::RasterOrder;
            const unsigned rows = cute::ceil_div(cute::get<0>(params.problem_shape),
                                                 int(cute::size<0>(TileShape{})) * ROWS);
            const unsigned columns = cute::ceil_div(cute::get<1>(params.problem_shape),
                                                    int(cute::size<1>(TileShape{})) * COLUMNS);
            along_n_ = params.scheduler.raster_order_ == Order::AlongN;
            log_swizzle_ = params.scheduler.log_swizzle_size_;
            const unsigned minor = along_n_ ? rows : columns;
            const unsigned strips = (minor + (1u << log_swizzle_) - 1) >> log_swizzle_;
            major_ = along_n_ ? columns : rows;
            per_matrix_ = (strips << log_swizzle_) * major_;
            matrices_ = cute::get<3>(params.problem_shape);
            // The grid is one cluster wide in one of the directions.
            index_ = blockIdx.x / ROWS + blockIdx.y / COLUMNS;
            stride_ = (gridDim.x / ROWS) * (gridDim.y / COLUMNS);
        }

        inline bool valid() const { return index_ < per_matrix_ * matrices_; }
        inline void advance(unsigned turns) { index_ += turns * stride_; }

        // (row, column, all of K, matrix), in tiles
        inline auto tile() const {
            const unsigned matrix = matrices_ > 1 ? index_ / per_matrix_ : 0;
            const unsigned index = index_ - matrix * per_matrix_;
            const unsigned strip = (index >> log_swizzle_) / major_;
            const unsigned major = (index >> log_swizzle_) - strip * major_;
            const unsigned minor =
                (strip << log_swizzle_) + (index & ((1u << log_swizzle_) - 1));
            const unsigned row = (along_n_ ? minor : major) * ROWS + blockIdx.x % ROWS;
            const unsigned column = (along_n_ ? major : minor) * COLUMNS + blockIdx.y % COLUMNS;
            return cute::make_coord(int(row), int(column), cute::_, int(matrix));
        }

    private:
        static constexpr int ROWS = cute::size<0>(Cluster{}), COLUMNS = cute::size<1>(Cluster{});
        unsigned index_, stride_, major_, per_matrix_, matrices_, log_swizzle_;
        bool along_n_;
    };

    inline void operator()(const Params& params, char* memory) {
        using namespace cute;
        auto& shared = *reinterpret_cast<SharedStorage*>(memory);
        const int warp = cutlass::canonical_warp_idx_sync();

        if (warp == 2 && elect_one_sync()) Mainloop::prefetch_tma_descriptors(params.mainloop);
        typename Pipeline::Params roles;
        roles.is_leader = threadIdx.x == 0;
        roles.num_producers = Kernel::NumProducerThreads;
        roles.num_consumers = THREADS_PER_TILE;
        roles.transaction_bytes = Mainloop::TmaTransactionBytes;
        roles.initializing_warp = 1;
        Pipeline::init_barriers(shared.pipelines.mainloop, roles, Cluster{});
        cluster_arrive_relaxed();
        const Walk walk(params);
        cluster_wait();

        if (warp < 4) {
            load(params, shared, roles, walk, warp);
        } else {
            cutlass::arch::warpgroup_reg_alloc<Kernel::MmaRegisterRequirement>();
            multiply(params, shared, roles, walk, warp / 4 - 1);
        }
    }

private:
    // The first group: one thread of it loads.
    inline static void load(const Params& params, SharedStorage& shared,
                            const typename Pipeline::Params& roles, Walk walk, int warp) {
        using namespace cute;
        Mainloop mainloop;
        const auto operands = mainloop.load_init(params.problem_shape, params.mainloop);
        const auto k_extent = shape<3>(get<0>(operands));
        Pipeline pipeline(shared.pipelines.mainloop, roles, Cluster{}, false_type{}, false_type{});
        auto state = cutlass::make_producer_start_state<Pipeline>();
        const auto load_some = [&](int first, int count) {
            mainloop.load(params.mainloop, pipeline, state, operands, walk.tile(),
                          make_coord_iterator(first, k_extent), count, threadIdx.x,
                          block_rank_in_cluster(), shared.tensors.mainloop);
            state.advance(count);
        };

        const bool loads = warp == 0;
        if (loads && walk.valid()) load_some(0, 1);
        cutlass::arch::warpgroup_reg_dealloc<Kernel::LoadRegisterRequirement>();
        if (!loads) return;
        for (int first = 1; walk.valid(); first = 0) {
            load_some(first, size(k_extent) - first);
            walk.advance(1);
        }
        mainloop.load_tail(pipeline, state);
    }

    // The other two groups. They wait for their turn at named barriers: 0 and 1 to multiply, 2 and
    // 3 to store.
    inline static void multiply(const Params& params, SharedStorage& shared,
                                const typename Pipeline::Params& roles, Walk walk, int group) {
        using namespace cute;
        const int other = 1 - group, thread = (threadIdx.x - GROUP) % THREADS_PER_TILE;
        const int k_tiles = ceil_div(get<2>(params.problem_shape), size<2>(TileShape{}));
        Mainloop mainloop;
        Pipeline pipeline(shared.pipelines.mainloop, roles, Cluster{}, false_type{}, true_type{});
        typename Mainloop::PipelineState state;
        if (PING_PONG && group == 1) {
            walk.advance(1);
            state.advance(k_tiles);
            Barrier::arrive(2 * GROUP, 0);
            Barrier::arrive(2 * GROUP, 2);
        }
        for (; walk.valid(); walk.advance(TURNS)) {
            auto sums = partition_fragment_C(typename Kernel::TiledMma{}, take<0, 2>(TileShape{}));
            if (PING_PONG) Barrier::sync(2 * GROUP, group);
            mainloop.mma(pipeline, state, sums, k_tiles, thread, shared.tensors.mainloop,
                         params.mainloop);
            if (PING_PONG) Barrier::arrive(2 * GROUP, other);
            mainloop.mma_tail(pipeline, state, k_tiles);
            state.advance(TURNS * k_tiles);
            if (PING_PONG) Barrier::sync(2 * GROUP, 2 + group);
            store(params, shared, sums, walk.tile(), thread);
            if (PING_PONG) Barrier::arrive(2 * GROUP, 2 + other);
        }
    }

    // C's tile = alpha * sums. Each part is rounded into shared memory; TMA stores it while the
    // next one is rounded.
    template <class Sums, class Tile>
    inline static void store(const Params& params, SharedStorage& shared, Sums& sums,
                             const Tile& tile, int thread) {
        using namespace cute;
        using Output = typename Epilogue::ElementD;
        using Part = typename Epilogue::EpilogueTile;
        constexpr int BUFFERS = Epilogue::DispatchPolicy::StagesD;
        const auto all_wait = [] {
            Barrier::sync(THREADS_PER_TILE, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
        };
        if (params.alpha != 1) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < size(sums); ++i) sums(i) *= params.alpha;
        }

        const auto& tma = params.epilogue.tma_store_d;
        const auto c = tma.get_tma_tensor(select<0, 1, 3>(params.problem_shape));
        const auto own_c = local_tile(c, take<0, 2>(TileShape{}), select<0, 1, 3>(tile));
        const auto parts = flat_divide(own_c, Part{});  // (PART_M,PART_N,along M,along N)
        auto buffers = as_position_independent_swizzle_tensor(make_tensor(
            make_smem_ptr(shared.tensors.epilogue.collective.smem_D.begin()),
            tile_to_shape(typename Epilogue::SmemLayoutAtomD{},
                          append(Part{}, Int<BUFFERS>{}), Step<_1, _2, _3>{})));
        const auto copy_to_shared =
            make_tiled_copy_S(Copy_Atom<typename Epilogue::CopyOpR2S, Output>{},
                              make_tiled_copy_C_atom(typename Epilogue::CopyAtomC{},
                                                     typename Kernel::TiledMma{}));
        const auto own = copy_to_shared.get_slice(thread);
        const auto from = own.retile_S(sums);     // ((R2S,R2S_V),MMA_M,MMA_N)
        auto to = own.partition_D(buffers);       // (R2S,R2S_M,R2S_N,buffer)
        auto rounded = make_tensor<Output>(take<0, 3>(shape(own.partition_S(buffers))));
        const auto tma_from = tma.get_slice(_0{}).partition_S(buffers);
        auto tma_to = tma.get_slice(_0{}).partition_D(parts);

        constexpr int SUMS = decltype(size(rounded))::value;  // of one thread in one part
        constexpr int PARTS_PER_MMA = decltype(size<0>(from))::value / SUMS;
        static_assert(PARTS_PER_MMA > 0 && decltype(size<2>(from))::value == 1);
        const bool stores = thread < 32;
        if (!PING_PONG) all_wait();  // for the stores of the previous tile
        int buffer = 0;
        CUTLASS_PRAGMA_UNROLL
        for (int n = 0; n < size<3>(parts); ++n) {
            CUTLASS_PRAGMA_UNROLL
            for (int m = 0; m < size<2>(parts); ++m) {
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < SUMS; i += 2) {
                    const int at = n % PARTS_PER_MMA * SUMS + i;
                    const auto pair = cutlass::NumericArrayConverter<Output, float, 2>{}(
                        {from(at, m, 0), from(at + 1, m, 0)});
                    rounded(i) = pair[0];
                    rounded(i + 1) = pair[1];
                }
                if (n * size<2>(parts) + m >= BUFFERS) {
                    if (stores) tma_store_wait<BUFFERS - 1>();
                    all_wait();
                }
                copy(copy_to_shared, rounded, to(_, _, _, buffer));
                tma_store_fence();
                all_wait();
                if (stores) {
                    copy(tma, tma_from(_, _, _, buffer), tma_to(_, _, _, m, n));
                    tma_store_arrive();
                }
                buffer = buffer + 1 == BUFFERS ? 0 : buffer + 1;
            }
        }
        if (stores) tma_store_wait<0>();
    }
};
