// SPDX-License-Identifier: Apache-2.0
// Arrays to narrow codes with scales. Every result is that of gpucast/quantization/exact_quantize.py. `F` is the format, a
// struct that gpucast/quantization/cuda/source.py writes; the array is in C order.
//
// Rows of short blocks are quantized in one pass, in which neighbouring threads share a block. All other blocks take
// three passes: the statistics of each block, its scale, its elements.
namespace gpucast {

// ---- one pass: blocks of a power of two elements along the last axis, all of them complete ----

// A thread has several tiles, all of which are on their way at a time; those of neighbours are next to each other.
template <typename F, typename Src, typename Float, typename Double, u32 Elements, u32 Block, u32 tiles, u32 Threads>
GPUCAST_INLINE void quantize_rows(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename F::element DType;
    typedef Tile<Elements * Src::bits / 8> SrcTile;
    typedef Tile<Elements * DType::bits / 8> DstTile;
    const u32 lanes = Block / Elements;
    const i64 first = block_number<F, Elements * tiles * Threads>(n) * (tiles * Threads) + threadIdx.x;
    SrcTile in[tiles] = {};
#pragma unroll
    for (u32 i = 0; i < tiles; ++i) {
        const i64 begin = (first + i * Threads) * Elements;
        if (begin < n) load_aligned(src + begin * i64(Src::bits) / 8, in[i]);
    }
    const Global<F> of_all(F::row_scaled ? 1 : global_value<F>(given.global_scale));
    const auto global_of = [&](i64 begin) {
        if constexpr (F::row_scaled) return Global<F>(global_value<F>(given.global_scale, begin, given.blocks.columns));
        else return of_all;
    };
    typedef Divisor<F, Src, Float, Double> By;
    // Whether what the fast path does not know is done last, one tile after the other, because its code is long.
    constexpr bool defers = tiles > 1 && (By::by_float || F::by_steps);
    Scale scale[tiles] = {};
    bool left[tiles] = {}, any_left = false;
#pragma unroll
    for (u32 i = 0; i < tiles; ++i) {
        const i64 thread = first + i * Threads, begin = thread * Elements;
        BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
        const bool finite = stats.template add_tile<Src, Elements>(in[i]);
        merge<lanes>(stats);
        // Those beyond the array stay, because others merge with them.
        if (begin >= n) continue;
        const Global<F> global = global_of(begin);
        scale[i] = scale_of<F, Float, Double>(stats, global);
        if (threadIdx.x % lanes == 0) {
            // In this pass the scales are an array of their own, so aligned.
            Tile<F::scale::bits / 8> code = {{scale[i].code}};
            store_aligned(given.scales + thread / lanes * (F::scale::bits / 8), code);
            if constexpr (F::zero_points) given.zero_points[thread / lanes] = u8(scale[i].zero_point);
        }
        const By divisor(scale[i], global.scale);
        DstTile out = {};
        // Where a scale can be NaN, it already says that an element is not finite.
        const bool known = F::nan_in_scale || finite;
        if constexpr (!defers) {
            divisor.template tile<Elements, !F::zero_points>(in[i], out, begin, known, given.random);
        } else if (divisor.fast && known) {
            divisor.template quick_tile<Elements, !F::zero_points>(in[i], out);
        } else {
            left[i] = any_left = true;
            continue;
        }
        store_aligned(dst + begin * i64(DType::bits) / 8, out);
    }
    if (!defers || !any_left) return;
    ptx::mark_rare();
#pragma unroll 1
    for (u32 i = 0; i < tiles; ++i) {
        Scale own = scale[0];
        bool wanted = left[0];
#pragma unroll
        for (u32 j = 1; j < tiles; ++j) {
            if (i == j) own = scale[j], wanted = left[j];
        }
        if (!wanted) continue;
        const i64 begin = (first + i * Threads) * Elements;
        SrcTile again;
        DstTile out = {};
        load_aligned(src + begin * i64(Src::bits) / 8, again);
        const By divisor(own, global_of(begin).scale);
        divisor.template tile<Elements, !F::zero_points>(again, out, begin, false, given.random);
        store_aligned(dst + begin * i64(DType::bits) / 8, out);
    }
}

// ---- the elements of all other blocks ----

template <typename Index>
GPUCAST_INLINE Index divided(Index n, i64 by, const Division& division) {
    if constexpr (sizeof(Index) == 8) {
        return n / Index(by);
    } else {
        const u32 part = u32(ptx::mul_wide(n, division.magic) >> 32);
        return (part + ((n - part) >> division.first)) >> division.second;
    }
}

// The block of an element, for elements one after the other. `Index` can hold the number of elements; `single` where
// there is only one block.
template <typename Index, bool single>
struct BlockCursor {
    const QuantizeArguments& given;
    const Blocks& blocks;
    Index outer, row, column, in_block, block;

    GPUCAST_INLINE BlockCursor(const QuantizeArguments& all, i64 i, i64 n)
        : given(all), blocks(all.blocks), outer(0), row(0), column(Index(i)), in_block(Index(i)), block(0) {
        if (single || (blocks.columns >= n && blocks.block_columns >= n)) return;
        const Index line = divided(Index(i), blocks.columns, given.columns);
        column -= line * Index(blocks.columns);
        outer = divided(line, blocks.rows, given.rows);
        row = line - outer * Index(blocks.rows);
        find();
    }
    GPUCAST_INLINE void next() {
        if constexpr (single) return;
        ++column;
        if (column == Index(blocks.columns)) {
            column = 0;
            ++row;
            if (row == Index(blocks.rows)) {
                row = 0;
                ++outer;
            }
            find();
        } else if (++in_block == Index(blocks.block_columns)) {
            in_block = 0;
            ++block;
        }
    }
    // How many elements there are from this one to the end of the row of the block.
    GPUCAST_INLINE Index left() const {
        if constexpr (single) return ~Index(0);
        const Index in_row = Index(blocks.columns) - column, here = Index(blocks.block_columns) - in_block;
        return in_row < here ? in_row : here;
    }

private:
    GPUCAST_INLINE void find() {
        const Index along = divided(column, blocks.block_columns, given.block_columns);
        const Index above = (blocks.splits_outer ? outer : 0) * Index(blocks.grid_rows) + divided(row, blocks.block_rows, given.block_rows);
        in_block = column - along * Index(blocks.block_columns);
        block = above * Index(blocks.grid_columns) + along;
    }
};

template <typename F>
GPUCAST_INLINE Scale load_scale(const u8* scales, const u8* zero_points, i64 block, const Blocks* blocks = nullptr) {
    typedef typename F::scale DType;
    i64 place = block;
    typedef typename F::order Order;
    if constexpr (!is_same<Order, Linear>) {
        const i64 columns = blocks->grid_columns, row = block / columns, rows = padded_rows(Order(), block_count(*blocks) / columns);
        place = Order::template place<DType::bits / 8>(row, block - row * columns, rows, columns);
    }
    const u32 code = load_element<DType::bits, u32>(scales + place * (DType::bits / 8));
    int zero = 0;
    if constexpr (F::zero_points) zero = F::lowest < 0 ? int(static_cast<signed char>(zero_points[block])) : zero_points[block];
    return {code, zero, F::nan_in_scale && (code & 0x7fffffff) >= u32(DType::nan_code)};
}

// The same to divide by. Given scales may be 0, which counts as the smallest one.
template <typename F>
GPUCAST_INLINE Scale load_divisor(const QuantizeArguments& given, i64 block) {
    Scale scale = load_scale<F>(given.scales, given.zero_points, block, &given.blocks);
    if constexpr (!F::by_steps) scale.code = scale.code == 0 ? u32(F::smallest_scale) : scale.code;
    return scale;
}

template <typename F, typename Src, typename Float, typename Double, typename Index, bool single, u32 Elements, u32 Threads>
GPUCAST_INLINE void quantize_elements(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename F::element DType;
    const i64 begin = (from_behind<Elements * Threads>(n) * Threads + threadIdx.x) * Elements;
    if (begin >= n) return;
    const u32 last = begin + Elements <= n ? Elements : u32(n - begin);
    float global = global_value<F>(given.global_scale, begin, given.blocks.columns);
    const u8* from = src + begin * i64(Src::bits / 8);
    u8* to = dst + begin * i64(DType::bits) / 8;
    BlockCursor<Index, single> cursor(given, begin, n);
    if (last == Elements && cursor.left() >= Elements && (address(from) & (Tile<Elements * Src::bits / 8>::piece - 1)) == 0) {
        Tile<Elements * Src::bits / 8> in;
        Tile<Elements * DType::bits / 8> out = {};
        load_aligned(from, in);
        BlockStats<V, F::zero_points, false> stats = {0, 0};
        const Divisor<F, Src, Float, Double> divisor(load_divisor<F>(given, cursor.block), global);
        const bool finite = stats.template add_tile<Src, Elements>(in);
        divisor.template tile<Elements, false>(in, out, begin, finite, given.random);
        store_aligned(to, out);
        return;
    }
    ptx::mark_rare();
    Writer<DType::bits, u32> out = {to, 0, 0};
#pragma unroll 1
    for (u32 i = 0; i < last; ++i) {
        if constexpr (F::row_scaled) global = global_value<F>(given.global_scale, begin + i, given.blocks.columns);
        const Divisor<F, Src, Float, Double> own(load_divisor<F>(given, cursor.block), global);
        const Word bits = V::of(load_element<Src::bits, Word>(from + i * (Src::bits / 8)));
        if constexpr (F::stochastic) out.put(own.at_random(bits, given.random.one(begin + i)));
        else out.put(own.one(bits));
        cursor.next();
    }
    out.finish();
}

// ---- one pass as above, with scales in an order ----

// `columns` are the threads of a row, with those for its padding. A thread has `lines` rows, whose scales are words next
// to each other. Scales beyond the last row and column are padding.
template <typename F, typename Src, typename Float, typename Double, u32 Elements, u32 Block, u32 lines, u32 Threads>
GPUCAST_INLINE void quantize_rows_in_order(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename F::element DType;
    typedef typename F::order Order;
    const u32 lanes = Block / Elements, bytes = F::scale::bits / 8;
    const u32 thread = u32(block_number<F, Elements * lines * Threads>(n)) * Threads + threadIdx.x;
    const u32 all = u32(given.blocks.columns);
    const u32 group = divided<u32>(thread, all, given.columns), along = thread - group * all, column = along / lanes;
    const i64 rows = given.blocks.grid_rows, columns = given.blocks.grid_columns, apart = Order::apart;
    const i64 first = group / u32(Order::apart) * (Order::apart * lines) + group % u32(Order::apart);
    // How far a row is below the last one.
    const i64 turn = apart * columns * Block;
    const bool inside = i64(thread) * (lines * Elements) < n, stores = threadIdx.x % lanes == 0 && inside;
    // A thread that merges with others has to stay. One that does not need not ask in each turn whether it stores.
    if (lanes == 1 && !inside) return;
    i64 begin = first * columns * Block + along * Elements;
    const i64 below = rows - first;
    int left = column >= u32(columns) || below < 0 ? 0 : below < 128 ? int(below) : 128;
    float global = F::row_scaled ? 1 : global_value<F>(given.global_scale);
    u8* to = given.scales + Order::template place<bytes>(first, column, padded_rows(Order(), rows), columns) * bytes;
    src += begin * i64(Src::bits / 8);
    dst += begin * i64(DType::bits) / 8;
    // The code of scales that are no powers of two is long.
#pragma unroll (F::scale::is_e8m0 ? lines : 1)
    for (u32 i = 0; i < lines; ++i) {
        Tile<Elements * Src::bits / 8> in = {};
        if (left > 0) load_aligned(src, in);
        if (F::row_scaled && left > 0) global = given.global_scale[first + i * apart];
        BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
        const bool finite = stats.template add_tile<Src, Elements>(in);
        merge<lanes>(stats);
        const Scale scale = scale_of<F, Float, Double>(stats, global);
        if (stores) {
            Tile<bytes> code = {{left > 0 ? scale.code : u32(F::padding)}};
            store_aligned(to, code);
            if constexpr (F::zero_points) {
                if (left > 0) given.zero_points[(first + i * apart) * columns + column] = u8(scale.zero_point);
            }
        }
        if (left > 0) {
            Tile<Elements * DType::bits / 8> out = {};
            const bool known = F::nan_in_scale || finite;
            const Divisor<F, Src, Float, Double> divisor(scale, global);
            divisor.template tile<Elements, !F::zero_points>(in, out, begin, known, given.random);
            store_aligned(dst, out);
        }
        src += turn * i64(Src::bits / 8);
        dst += turn * i64(DType::bits) / 8;
        begin += turn;
        to += scale_word;
        left -= int(apart);
    }
}

// ---- scales alone ----

// Scales of `Bytes` to an order, or with `back` from it; padding is zero. A thread for each, padding included.
template <typename Order, u32 Bytes, bool back, u32 Threads>
GPUCAST_INLINE void move_scales(const u8* src, u8* dst, i64 n, const Blocks& blocks) {
    const i64 i = i64(blockIdx.x) * Threads + threadIdx.x, rows = padded_rows(Order(), blocks.grid_rows);
    if (i >= n) return;
    const i64 across = n / rows, row = i / across, column = i - row * across;
    const bool here = row < blocks.grid_rows && column < blocks.grid_columns;
    const i64 plain = (row * blocks.grid_columns + column) * Bytes;
    const i64 place = Order::template place<Bytes>(row, column, rows, blocks.grid_columns) * Bytes;
    if constexpr (!back) store_element<8 * Bytes>(dst + place, here ? load_element<8 * Bytes, u32>(src + plain) : 0);
    else if (here) store_element<8 * Bytes>(dst + plain, load_element<8 * Bytes, u32>(src + place));
}

}  // namespace gpucast

// A macro, because the name of a kernel is that of its work. gpucast/quantization/cuda/source.py defines NAME_format; the
// last argument is a call of a function above.
#define GPUCAST_QUANTIZE(NAME, THREADS, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::QuantizeArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        static_cast<void>(src), static_cast<void>(dst), static_cast<void>(n);                                          \
        __VA_ARGS__;                                                                                                   \
    }
// The last argument is a struct that takes the statistics of the whole array.
#define GPUCAST_QUANTIZE_WHOLE(NAME, SRC, THREADS, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::QuantizeArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        static_cast<void>(dst);                                                                                        \
        typedef decltype(__VA_ARGS__) Finish;                                                                          \
        __shared__ WarpStats<Finish::Stats, THREADS> shared;                                                           \
        find_whole<Value<SRC, FLOAT, DOUBLE>, SRC, THREADS>(src, n, given, shared, __VA_ARGS__);                       \
    }
