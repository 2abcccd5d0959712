// SPDX-License-Identifier: Apache-2.0
// The largest and smallest numbers of blocks, and their scales: the passes before the elements of `quantize.cu`. `F` is the
// format.
namespace gpucast {

// Merges the statistics of an aligned group of `Lanes` threads, of whole warps; all of them get the result.
template <u32 Lanes, typename Stats>
GPUCAST_INLINE void merge(Stats& stats) {
#pragma unroll
    for (u32 step = Lanes / 2; step != 0; step /= 2) stats.merge(stats.other(step));
}

GPUCAST_INLINE i64 block_count(const Blocks& blocks) {
    return (blocks.splits_outer ? blocks.outer : 1) * blocks.grid_rows * blocks.grid_columns;
}

// The number of a block of threads that works on so many elements, in a pass that follows another one over the same n
// elements: the last ones come first, because the L2 cache still has them.
template <u32 Elements>
GPUCAST_INLINE i64 from_behind(i64 n) {
    return (n - 1) / Elements - i64(blockIdx.x);
}
template <typename F, u32 Elements>
GPUCAST_INLINE i64 block_number(i64 n) {
    return F::global_scale ? from_behind<Elements>(n) : i64(blockIdx.x);
}

// ---- the passes of all other blocks ----

// The statistics of a part of a block, by `Lanes` threads. In `given.stats` the first parts of all blocks come first.
template <typename V, typename Src, typename Index, bool two_sided, bool finite_only, u32 Lanes, u32 Threads>
GPUCAST_INLINE void find_extremes(const u8* src, i64 n, const QuantizeArguments& given) {
    typedef typename V::Word Word;
    const u32 bytes = Src::bits / 8, vector = 16 / bytes, prefetched = 4;
    const Blocks& blocks = given.blocks;
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x;
    const Index team = Index(thread / Lanes);
    const u32 lane = u32(thread) % Lanes;
    BlockStats<V, two_sided, finite_only> stats = {0, 0};
    if (thread < n) {
        const Index count = Index(block_count(blocks)), part = team / count, block = team - part * count;
        const Index above = block / Index(blocks.grid_columns), outer = above / Index(blocks.grid_rows);
        const i64 column = i64(block - above * Index(blocks.grid_columns)) * blocks.block_columns;
        const i64 row = i64(above - outer * Index(blocks.grid_rows)) * blocks.block_rows;
        const i64 left = blocks.columns - column, down = blocks.rows - row;
        const i64 width = left < blocks.block_columns ? left : blocks.block_columns;
        const i64 height = blocks.splits_outer ? (down < blocks.block_rows ? down : blocks.block_rows) : blocks.outer;
        // Elements are contiguous along the rows of a block; `stride` is the distance of its rows.
        const i64 stride = blocks.splits_outer ? blocks.columns : blocks.rows * blocks.columns, all = width * height;
        const u8* from = src + ((i64(outer) * blocks.rows + row) * blocks.columns + column) * bytes;
        i64 begin = i64(part) * given.chunk;
        const i64 end = begin + given.chunk < all ? begin + given.chunk : all;
        if (Lanes != 1 && (height == 1 || stride == width) && (address(from) & 15) == 0) {
            // A part begins with a vector, because chunks are multiples of one.
            const i64 vectors = end > begin ? (end - begin) / vector : 0;
            for (i64 at = lane; at < vectors; at += prefetched * Lanes) {
                Tile<16> tile[prefetched];
#pragma unroll
                for (u32 j = 0; j < prefetched; ++j) {
                    tile[j] = {};
                    if (at + j * Lanes < vectors) load_aligned(from + begin * bytes + (at + j * Lanes) * 16, tile[j]);
                }
#pragma unroll
                for (u32 j = 0; j < prefetched; ++j) stats.template add_tile<Src, vector>(tile[j]);
            }
            begin += vectors * vector;
        }
        begin += lane;
        if (Lanes == 1 && width == 1 && ((address(from) | u64(stride * bytes)) & (bytes - 1)) == 0) {
            // A column, of which several rows are under way at a time.
            const u32 ahead = 8;
            const i64 step = stride * bytes;
            const u8* at = from + begin * step;
#pragma unroll 1
            for (; begin + ahead <= end; begin += ahead, at += ahead * step) {
                Tile<bytes> row[ahead];
                Tile<ahead * bytes> all = {};
#pragma unroll
                for (u32 j = 0; j < ahead; ++j) load_aligned(at + j * step, row[j]);
#pragma unroll
                for (u32 j = 0; j < ahead; ++j) put<Src::bits>(all, j, get<Src::bits, Word>(row[j], 0));
                stats.template add_tile<Src, ahead>(all);
            }
        }
        if (begin < end) {
            i64 line = Index(begin) / Index(width), along = begin - line * width;
            for (i64 i = begin; i < end; i += Lanes) {
                stats.add(V::of(load_element<Src::bits, Word>(from + (line * stride + along) * bytes)));
                along += Lanes;
                while (along >= width) {
                    along -= width;
                    ++line;
                }
            }
        }
    }
    merge<Lanes>(stats);
    if (thread < n && lane == 0) reinterpret_cast<BlockStats<V, two_sided, finite_only>*>(given.stats)[team] = stats;
}

// The same where each block is a part of a column, and a thread takes neighbouring ones: vectors of 16 bytes, aligned.
template <typename V, typename Src, typename Index, bool two_sided, bool finite_only, u32 Threads>
GPUCAST_INLINE void find_column_extremes(const u8* src, i64 n, const QuantizeArguments& given) {
    typedef typename V::Word Word;
    typedef BlockStats<V, two_sided, finite_only> Stats;
    const u32 bytes = Src::bits / 8, vector = 16 / bytes, ahead = 4;
    const Blocks& blocks = given.blocks;
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x;
    if (thread >= n) return;
    const Index count = Index(block_count(blocks)), vectors = count / vector;
    const Index part = Index(thread) / vectors, block = (Index(thread) - part * vectors) * vector;
    const Index above = block / Index(blocks.grid_columns), outer = above / Index(blocks.grid_rows);
    const i64 first = i64(above - outer * Index(blocks.grid_rows)) * blocks.block_rows, down = blocks.rows - first;
    const i64 height = down < blocks.block_rows ? down : blocks.block_rows, begin = i64(part) * given.chunk;
    const i64 end = begin + given.chunk < height ? begin + given.chunk : height, stride = blocks.columns * bytes;
    // Below 2^32, because large arrays have parts for all threads that keep a device busy.
    const u32 rows = begin < end ? u32(end - begin) : 0;
    const i64 column = i64(block - above * Index(blocks.grid_columns));
    Stats* const to = reinterpret_cast<Stats*>(given.stats) + (part * count + block);
    const u8* at = src + ((i64(outer) * blocks.rows + first + begin) * blocks.columns + column) * bytes;
    ColumnStats<V, Src, two_sided> columns;
    u32 row = 0;
#pragma unroll 1
    for (; row + ahead <= rows; row += ahead, at += ahead * stride) {
        Tile<16> tile[ahead];
#pragma unroll
        for (u32 j = 0; j < ahead; ++j) load_aligned(at + j * stride, tile[j]);
#pragma unroll
        for (u32 j = 0; j < ahead; ++j) columns.add(tile[j]);
    }
#pragma unroll 1
    for (; row < rows; ++row, at += stride) {
        Tile<16> tile;
        load_aligned(at, tile);
        columns.add(tile);
    }
    bool finite = true;
#pragma unroll
    for (u32 j = 0; j < vector; ++j) {
        const Stats stats = {columns.low(j), columns.high(j)};
        finite &= !stats.has_nonfinite();
        to[j] = stats;
    }
    if (!finite_only || finite) return;
    ptx::mark_rare();
    at -= rows * stride;
#pragma unroll 1
    for (u32 j = 0; j < vector; ++j) {
        Stats stats = {0, 0};
#pragma unroll 1
        for (row = 0; row < rows; ++row) stats.add(V::of(load_element<Src::bits, Word>(at + row * stride + j * bytes)));
        to[j] = stats;
    }
}

// The scale of a block of `count`. With `keep` the scales are given, and only those of blocks with an infinity or NaN are
// written.
template <typename F, typename V, typename Float, typename Double, bool keep>
GPUCAST_INLINE void put_scale(
    const BlockStats<V, F::two_sided, !F::nan_in_scale>& stats, i64 block, i64 count, const QuantizeArguments& given) {
    if (keep && !stats.has_nonfinite()) return;
    const float global = global_value<F>(given.global_scale, block, given.blocks.grid_columns);
    const Scale scale = scale_of<F, Float, Double>(stats, global);
    if constexpr (is_same<typename F::order, Linear>) {
        store_element<F::scale::bits>(given.scales + block * (F::scale::bits / 8), scale.code);
    } else {
        const i64 columns = given.blocks.grid_columns, row = block / columns;
        store_scale<F::scale::bits / 8>(
            given.scales, typename F::order(), row, block - row * columns, count / columns, columns, scale.code, F::padding);
    }
    if constexpr (F::zero_points) given.zero_points[block] = u8(scale.zero_point);
}

template <typename F, typename V, typename Float, typename Double, bool keep, u32 Threads>
GPUCAST_INLINE void find_scales(const QuantizeArguments& given) {
    const i64 count = block_count(given.blocks), block = (i64(blockIdx.x) * Threads + threadIdx.x) / 32;
    BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
    for (i64 part = threadIdx.x % 32; block < count && part < given.parts; part += 32) {
        stats.merge(reinterpret_cast<const decltype(stats)*>(given.stats)[part * count + block]);
    }
    merge<32>(stats);
    if (block < count && threadIdx.x % 32 == 0) put_scale<F, V, Float, Double, keep>(stats, block, count, given);
}

// The code of the global scale for numbers up to `high`: the FLOAT by which the largest scale becomes the largest number
// of the scales' type.
template <typename F, typename V, typename Double, typename Float>
GPUCAST_INLINE u32 global_scale_of(typename V::Word high) {
    if constexpr (F::by_steps) return ptx::bits(F::step_u(ptx::as_float(u32(high))));
    const u64 ratio = ptx::bits(V::number(high) / F::global_divisor());
    const u32 code = u32(cast_code<Double, Float>(ratio, typename F::global_rule()));
    return code < 1u << 23 ? 1u << 23 : code;
}

// The same for each of n rows, from an array of their largest magnitudes.
template <typename F, typename V, typename Double, typename Float, u32 Threads>
GPUCAST_INLINE void find_row_scales(const u8* src, u8* dst, i64 n, const QuantizeArguments&) {
    const i64 row = i64(blockIdx.x) * Threads + threadIdx.x;
    if (row >= n) return;
    BlockStats<V, false, true> stats = {0, 0};
    stats.add(load_element<32, u32>(src + row * 4));
    store_element<32>(dst + row * 4, global_scale_of<F, V, Double, Float>(stats.high));
}

// ---- one block that is the whole array, in one launch ----

// The statistics so far, and how many blocks of threads have added theirs: zero before a launch and after it.
struct WholeCell {
    u64 high, low;
    u32 count;
};
template <typename Stats, u32 Threads>
struct WarpStats {
    Stats of[Threads / 32];
};

// Adds the statistics of a block's threads to the cell, and calls `finish` with those of all `blocks`, by one thread of
// the block that comes last.
template <u32 Threads, typename Stats, typename Finish>
GPUCAST_INLINE void finish_whole(Stats stats, WarpStats<Stats, Threads>& shared, u8* at, i64 blocks, const Finish& finish) {
    typedef typename Stats::Word Word;
    const u32 warps = Threads / 32;
    merge<32>(stats);
    if (threadIdx.x % 32 == 0) shared.of[threadIdx.x / 32] = stats;
    GPUCAST_BARRIER();
    stats = shared.of[threadIdx.x % warps];
    merge<warps>(stats);
    if (threadIdx.x != 0) return;
    WholeCell& cell = *reinterpret_cast<WholeCell*>(at);
    Word &high = reinterpret_cast<Word&>(cell.high), &low = reinterpret_cast<Word&>(cell.low);
    ptx::red_max(&high, stats.high);
    if constexpr (Stats::has_low) ptx::red_max(&low, stats.low);
    ptx::fence();
    if (ptx::count_up(&cell.count, u32(blocks) - 1) != u32(blocks) - 1) return;
    ptx::fence();
    stats.high = ptx::take(&high);
    if constexpr (Stats::has_low) {
        ptx::fence();
        stats.low = ptx::take(&low);
    }
    finish(stats);
}

// The statistics of the whole array, by n threads: whole blocks of them.
template <typename V, typename Src, u32 Threads, typename Finish>
GPUCAST_INLINE void find_whole(const u8* src, i64 n, const QuantizeArguments& given,
                               WarpStats<typename Finish::Stats, Threads>& shared, const Finish& finish) {
    typedef typename V::Word Word;
    // Loads of a turn, and how many of them are looked at together.
    const u32 bytes = Src::bits / 8, vector = 16 / bytes, ahead = 8, some = 4;
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x, all = given.blocks.columns;
    typename Finish::Stats stats = {0, 0};
    // The elements before the first aligned vector; all of them where none is aligned.
    const u32 off = u32(address(src)) & 15;
    i64 head = off % bytes != 0 ? all : off == 0 ? 0 : i64((16 - off) / bytes);
    if (head > all) head = all;
    const u8* from = src + head * bytes;
    const i64 vectors = (all - head) / vector;
    // All blocks go through the array together, so that its end is what the L2 cache has for the next pass.
#pragma unroll 1
    for (i64 at = thread; at < vectors; at += ahead * n) {
        Tile<some * 16> in[ahead / some];
#pragma unroll
        for (u32 j = 0; j < ahead; ++j) {
            Tile<16> one = {};
            if (at + j * n < vectors) load_aligned(from + (at + j * n) * 16, one);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) in[j / some].word[j % some * 4 + k] = one.word[k];
        }
#pragma unroll
        for (u32 j = 0; j < ahead / some; ++j) stats.template add_tile<Src, some * vector>(in[j]);
    }
    const i64 tail = head + vectors * vector;
#pragma unroll 1
    for (i64 i = thread; i < head + all - tail; i += n) {
        ptx::mark_rare();
        stats.add(V::of(load_element<Src::bits, Word>(src + (i < head ? i : i - head + tail) * bytes)));
    }
    finish_whole<Threads>(stats, shared, given.stats, n / Threads, finish);
}

// What becomes of the statistics: the scale of the one block, or the global scale.
template <typename F, typename V, typename Float, typename Double, bool keep>
struct ToScale {
    typedef BlockStats<V, F::two_sided, !F::nan_in_scale> Stats;
    const QuantizeArguments& given;

    GPUCAST_INLINE void operator()(const Stats& stats) const { put_scale<F, V, Float, Double, keep>(stats, 0, 1, given); }
};
template <typename F, typename V, typename Float, typename Double>
struct ToGlobalScale {
    typedef BlockStats<V, false, true> Stats;
    u8* dst;

    GPUCAST_INLINE void operator()(const Stats& stats) const {
        store_element<32>(dst, global_scale_of<F, V, Double, Float>(stats.high));
    }
};

// The scales in place of the largest magnitudes that the other passes needed, or with `global` the global scale.
template <typename F, bool global, u32 Threads>
GPUCAST_INLINE void finish_scales(u8* dst, i64 n) {
    const i64 i = i64(blockIdx.x) * Threads + threadIdx.x;
    if (i >= n) return;
    const float found = reinterpret_cast<const float*>(dst)[i];
    if constexpr (global) store_element<32>(dst + 4 * i, ptx::bits(F::step_global(found)));
    else if (!is_same<typename F::order, Linear> && ptx::bits(found) == u32(F::padding)) store_element<32>(dst + 4 * i, 0u);
    else if (found == found) store_element<32>(dst + 4 * i, ptx::bits(F::step_scale(found, 1)));
}

}  // namespace gpucast
