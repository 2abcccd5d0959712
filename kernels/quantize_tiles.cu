// SPDX-License-Identifier: Apache-2.0
// Arrays to narrow codes with scales, in tiles: one read of an array gives codes by blocks along its rows, by blocks
// down its columns, or both, in its own order and transposed. Every result is that of
// gpucast/quantization/exact_quantize.py.
//
// A thread holds a patch of a tile in registers. Only statistics, scales and codes go through shared memory, codes as
// bytes, so that each thread writes complete vectors of the result.
//
// Where two buffers fit, blocks stay: while one tile is worked on, the next one is on its way to shared memory. Each thread
// copies its own patch there (cp.async), and sees it when it has waited for its copies, without a barrier. A bulk copy for
// each row of a tile would take 14 instructions a row (docs/performance.md), nine times as many as these.
namespace gpucast {

// How many blocks a multiprocessor shall hold, for __launch_bounds__: as many as leave enough registers for a patch.
// Arithmetic in place of conversion instructions takes more of them.
template <typename Src, typename G>
GPUCAST_CONSTANT u32 tile_blocks(u32 threads) {
    const bool by_arithmetic = GPUCAST_ARCH < 890;
    if (threads > 128 && !by_arithmetic && GPUCAST_ARCH >= 1000 && Src::bits == 16 && TileShape<G>::square) return 3;
    return threads > 128 && by_arithmetic ? 1 : (by_arithmetic ? 384 : 512) / threads;
}

// One tile, of which each thread has its patch. `ask_next` begins to copy the patches of the next one.
template <typename F, typename Src, typename Float, typename Double, typename G, typename AskNext>
GPUCAST_INLINE void quantize_tile(
    const TileKernel<F, Src, Float, Double, G>& work, const Patch<Src, G::rows, G::columns>& patch, const AskNext& ask_next) {
    typedef TileKernel<F, Src, Float, Double, G> Kernel;
    typedef typename Kernel::Shape Shape;
    typedef typename Kernel::Stats Stats;
    typename Kernel::Memory& shared = work.shared;
    // A bit for each row and each column, set where all its elements are finite.
    u32 finite_rows = 0, finite_columns = 0;
    if constexpr (Shape::along || Shape::square) {
        RowStats<Stats, G::rows> stats;
#pragma unroll
        for (u32 i = 0; i < G::rows; ++i) {
            stats.row[i] = {0, 0};
            finite_rows |= u32(stats.row[i].template add_tile<Src, G::columns>(patch.row[i])) << i;
        }
        if constexpr (Shape::along) {
            merge<Shape::part_lanes>(stats);
            if (threadIdx.x % Shape::part_lanes == 0) {
#pragma unroll
                for (u32 i = 0; i < G::rows; ++i) {
                    shared.held.stats.in_rows.put((work.row + i) * (G::tile_columns / Shape::part) + work.column / Shape::part, stats.row[i]);
                }
            }
        } else {
            Stats all = stats.row[0];
#pragma unroll
            for (u32 i = 1; i < G::rows; ++i) all.merge(stats.row[i]);
            merge<Shape::block_lanes>(all);
            if (threadIdx.x % Shape::block_lanes == 0) {
                shared.held.stats.in_columns.put(work.row / G::rows * Shape::runs_along + work.column / G::block, all);
            }
        }
    }
    if constexpr (Shape::down) {
        // Where nobody asks which columns are finite, words of neighbouring columns are compared as they are.
        const bool by_words = F::nan_in_scale && G::columns * Src::bits == 128;
        ColumnStats<typename Kernel::V, Src, F::two_sided> columns;
        if constexpr (by_words) {
#pragma unroll
            for (u32 i = 0; i < G::rows; ++i) columns.add(patch.row[i]);
        }
#pragma unroll
        for (u32 j = 0; j < G::columns; ++j) {
            Stats stats = {0, 0};
            if constexpr (by_words) stats = {columns.low(j), columns.high(j)};
            else finite_columns |= u32(stats.template add_tile<Src, G::rows>(patch.column(j))) << j;
            if constexpr (!G::whole_columns) {
                shared.held.stats.in_columns.put(work.row / G::rows * G::tile_columns + work.column + j, stats);
            }
        }
    }
    if constexpr (!Shape::everywhere) {
        GPUCAST_BARRIER();
        ask_next();
        if constexpr (Shape::along) work.scales_along();
        if constexpr (Shape::down) work.scales_down();
        if constexpr (Shape::square) work.scales_of_squares();
        GPUCAST_BARRIER();
    }
    // With squares, or one scale for all, both results have the same codes: by columns if the transposed one is wanted.
    const bool one = Shape::square || Shape::everywhere, by_rows = one && !Shape::swapped;
    bool same_done = false, swapped_done = false;
    if constexpr (!F::stochastic) {
        if constexpr (by_rows || G::same() == Run::along) same_done = work.template quantize_rows_of<G::same()>(patch, finite_rows);
        if constexpr (G::swapped() == Run::along) swapped_done = work.template quantize_rows_turned<Run::along>(patch, finite_rows);
        if constexpr (one && Shape::swapped) {
            const u32 finite = Shape::everywhere || finite_rows == (1u << G::rows) - 1 ? ~0u : 0;
            swapped_done = work.template quantize_columns<G::swapped(), Shape::same, true>(patch, finite);
            same_done = Shape::same && swapped_done;
        }
        if constexpr (G::same() == Run::down) same_done = work.template quantize_columns<Run::down, true, false>(patch, finite_columns);
        if constexpr (G::swapped() == Run::down) swapped_done = work.template quantize_columns<Run::down, false, true>(patch, finite_columns);
    }
    if ((Shape::same && !same_done) || (Shape::swapped && !swapped_done)) {
        if constexpr (!F::stochastic) ptx::mark_rare();
        if constexpr (Shape::same) {
            if (!same_done) work.template put_one_by_one<G::same(), false>();
        }
        if constexpr (Shape::swapped) {
            if (!swapped_done) work.template put_one_by_one<G::swapped(), true>();
        }
    }
    GPUCAST_BARRIER();
    put_out<G>(work);
}

template <typename F, typename Src, typename Float, typename Double, typename G>
GPUCAST_INLINE void quantize_tiles(
    const u8* src, i64 n, const TileArguments& given, TileMemory<F, Value<Src, Float, Double>, G>& shared) {
    typedef TileKernel<F, Src, Float, Double, G> Kernel;
    typedef typename Kernel::Shape Shape;
    typedef typename Kernel::Place Place;
    const u32 tiles = u32(n / u32(Shape::tile));
    const i64 stride = given.columns * Kernel::bytes;
    const bool aligned = (stride & 15) == 0 && (address(src) & 15) == 0;
    // Where another pass over the array came before, the last tiles come first.
    const bool is_second = F::global_scale || Shape::everywhere || G::whole_columns;
    TileWalk<G> walk(blockIdx.x, gridDim.x, tiles, is_second, given);
    const Global<F> global(global_value<F>(given.global_scale));
    Kernel::fill(shared, global);
    Place place = walk.place(given);
    Patch<Src, G::rows, G::columns> patch;
    const auto load = [&](const Kernel& work) { patch.load(work.patch(), stride, work.rows_left(), work.columns_left(), aligned); };
    if constexpr (!Shape::stays) {
        const Kernel work(src, n, place, given, shared, global);
        load(work);
        quantize_tile(work, patch, [] {});
    } else {
        // Complete patches come by way of shared memory, asked for when those of the tile before are in registers.
        const auto ask = [&](const Place& next, bool is_first) {
            const Kernel work(src, n, next, given, shared, global);
            if (!aligned || !work.is_whole()) return;
            // Of many tiles.
            if (is_first) ptx::mark_rare();
            patch.ask(work.patch(), stride, shared.next);
        };
        ask(place, true);
#pragma unroll 1
        for (u32 number = blockIdx.x; number < tiles;) {
            const Kernel work(src, n, place, given, shared, global);
            if (aligned && work.is_whole()) patch.take(shared.next);
            else load(work);
            number += gridDim.x;
            if (number < tiles) {
                walk.next(given);
                place = walk.place(given);
            }
            quantize_tile(work, patch, [&] {
                if (number < tiles) ask(place, false);
            });
            if constexpr (!Kernel::Memory::apart) GPUCAST_BARRIER();
        }
    }
}

}  // namespace gpucast

// A macro, because the name of a kernel is that of its work. gpucast/quantization/cuda/tile_source.py defines NAME_format
// and NAME_tiles.
#define GPUCAST_QUANTIZE_TILES(NAME, SRC, THREADS)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, gpucast::tile_blocks<gpucast::SRC, gpucast::NAME##_tiles>(THREADS))                 \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8*, gpucast::i64 n,                                       \
             const __grid_constant__ gpucast::TileArguments given) {                                                   \
        using namespace gpucast;                                                                                       \
        typedef Value<SRC, FLOAT, DOUBLE> V;                                                                           \
        __shared__ TileMemory<NAME##_format, V, NAME##_tiles> shared;                                                  \
        quantize_tiles<NAME##_format, SRC, FLOAT, DOUBLE, NAME##_tiles>(src, n, given, shared);                        \
    }
