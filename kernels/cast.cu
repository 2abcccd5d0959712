// SPDX-License-Identifier: Apache-2.0
// The kernels of a plain cast: which elements a thread casts. gpucast/kernel/cast_kernel.py adds the dtypes of a
// pair, its rule, and one line that names its kernel.
#ifndef GPUCAST_BARRIER
#define GPUCAST_BARRIER() __syncthreads()
#endif
// Fills the table of a converter that has one. A macro, because in the host build a barrier returns from the kernel.
// All threads of a block must reach it.
#define GPUCAST_FILL(CONVERTER)                \
    if constexpr (Converter::shared_bytes != 0) { \
        CONVERTER.fill();                      \
        GPUCAST_BARRIER();                     \
    }

namespace gpucast {

// ---- a tile ----

// A converter casts the elements that a thread has read: `one` element, or a `tile` into another tile, which is zero
// before. Both take the row-major index of the (first) element in its array. A converter with `observes` set computes
// statistics of the source, and gets zeros in place of elements before and behind the array. `fill` fills the look-up
// table in shared memory, of `shared_bytes`.

// Casts by arithmetic, in the first way of `TileWays` that takes the pair.
template <typename Src, typename Dst, u32 SrcBits, typename Rule>
struct Arithmetic {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    enum : u32 { shared_bytes = 0 };
    enum : bool { observes = false, stochastic = false };

    GPUCAST_INLINE void fill() const {}

    GPUCAST_INLINE Word one(Word code, i64) const { return cast_code<Src, Dst>(code, Rule()); }

    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64) const {
        TileWays::template tile<Src, Dst, SrcBits, Elements, Rule>(in, out);
    }
};

// Casts by the look-up table `entries`, which has codes of the type Entry: Dst, or FLOAT, which is then cast to Dst.
template <typename Src, typename Dst, typename Entry, u32 SrcBits, typename Rule, u32 Threads>
struct Lookup {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    typedef TableShape<Src, Entry, SrcBits> Shape;
    enum : u32 { shared_bytes = Shape::bytes };
    enum : bool { observes = false };
    const Table<Shape>& entries;
    FourWords* shared;

    GPUCAST_INLINE void fill() const { fill_table<Shape, Threads>(shared, entries); }

    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64) const {
        const u32 parts = Elements / Shape::elements, count = parts < 4 ? parts : 4, lane = ptx::lane();
#pragma unroll
        for (u32 i = 0; i < parts; i += count) {
            u32 entry[count];
            if constexpr (Shape::index_bits == 8 && count == 4) {
                look_up_bytes<Shape>(shared, lane, in.word[i / 4], entry);
            } else {
#pragma unroll
                for (u32 j = 0; j < count; ++j) entry[j] = look_up<Shape>(shared, lane, get<Shape::index_bits, u32>(in, i + j));
            }
#pragma unroll
            for (u32 j = 0; j < count; ++j) {
                if constexpr (Dst::bits > 16) put<Dst::bits>(out, i + j, finished(entry[j]));
                else put_by_product<Shape::entry_bits>(out, i + j, entry[j]);
            }
        }
    }

    GPUCAST_INLINE Word finished(u32 entry) const {
        if constexpr (Entry::bits <= 16) {
            return entry;
        } else if constexpr (is_short<Src, Dst>(Rule())) {
            return short_integer<Src>(ptx::as_float(entry << 16));
        } else {
            return cast_code<Entry, Dst>(Word(entry << 16), Rule());
        }
    }
};

// ---- contiguous to contiguous ----

// One thread casts `Unroll` tiles of `Elements` elements, a block's width apart, so that a warp's accesses are
// coalesced. The destination's tiles are aligned, so that the first one may begin before the array. `number` is the
// number of the block.
template <u32 SrcBits, u32 DstBits, u32 Elements, u32 Unroll, u32 Threads, typename Converter>
GPUCAST_INLINE void cast_contiguous(
    const u8* src, u32 src_bit, u8* dst, i64 n, u32 number, Converter& converter) {
    typedef Tile<Elements * SrcBits / 8> SrcTile;
    typedef Tile<Elements * DstBits / 8> DstTile;
    const u32 src_bytes = Elements * SrcBits / 8, dst_bytes = Elements * DstBits / 8;
    const u32 width = Threads * Elements, block = width * Unroll;
    const Head head = elements_before<DstBits, DstTile::wide>(dst);
    const u32 missing = head.elements == 0 ? 0 : Elements - head.elements;
    // All of this is the same for all threads of a block. Only packed elements begin inside a byte.
    const i64 block_begin = i64(number) * block - missing;
    const i64 src_begin = (SrcBits < 8 ? i64(src_bit) : 0) + block_begin * SrcBits;
    const u8* from = src + (src_begin >> 3);
    u8* to = dst + (block_begin * i64(DstBits) >> 3);
    // In the source every tile begins at the same bit, and at the same distance from an aligned address.
    const u32 bit = u32(src_begin) & 7;
    const bool straight = bit == 0 && (address(from) & (SrcTile::wide - 1)) == 0;
    if (straight && head.reachable && block_begin >= 0 && block_begin + block <= n) {
        const u8* mine_from = from + threadIdx.x * src_bytes;
        u8* mine_to = to + threadIdx.x * dst_bytes;
        SrcTile in[Unroll];
#pragma unroll
        for (u32 u = 0; u < Unroll; ++u) load_wide(mine_from + u * Threads * src_bytes, in[u]);
        // The loads are in flight while the table is filled.
        GPUCAST_FILL(converter);
#pragma unroll
        for (u32 u = 0; u < Unroll; ++u) {
            DstTile out = {};
            converter.template tile<Elements>(in[u], out, block_begin + i64(u * width + threadIdx.x * Elements));
            store_wide(mine_to + u * Threads * dst_bytes, out);
        }
        return;
    }
    // All tiles are on their way from memory while the first is cast.
#pragma unroll
    for (u32 u = 0; u < Unroll; ++u) {
        const i64 begin = block_begin + i64(u * width + threadIdx.x * Elements);
        if (begin >= 0 && begin < n) ptx::prefetch(from + (u * Threads + threadIdx.x) * src_bytes);
    }
    GPUCAST_FILL(converter);
    // Elements on either side that a shifted load may touch.
    const u32 margin = straight ? 0 : SrcTile::shift_margin * 8 / SrcBits + 1;
#pragma unroll 1
    for (u32 u = 0; u < Unroll; ++u) {
        const i64 begin = block_begin + i64(u * width + threadIdx.x * Elements);
        const u32 place = u * Threads + threadIdx.x;
        const bool complete = begin >= 0 && begin + Elements <= n;
        // The elements of this tile that are in the array.
        const u32 first = begin < 0 ? u32(0 - begin) : 0;
        const u32 last = begin + Elements <= n ? Elements : begin < n ? u32(n - begin) : 0;
        if (first >= last) continue;
        SrcTile in;
        DstTile out = {};
        if (begin >= margin && begin + Elements + margin <= n) {
            if (straight) {
                load_aligned(from + place * src_bytes, in);
            } else {
                load_shifted(from + place * src_bytes, bit, in);
            }
        } else {
            load_part(from + place * src_bytes, bit, bit + first * SrcBits, bit + last * SrcBits, in);
            // The bytes at the ends may hold bits of other elements.
            if constexpr (Converter::observes) keep_bits(in, first * SrcBits, last * SrcBits);
        }
        converter.template tile<Elements>(in, out, begin);
        if (head.reachable && complete) {
            store_aligned(to + place * dst_bytes, out);
        } else {
            store_part(to + place * dst_bytes, first * DstBits, last * DstBits, out);
        }
    }
}

// ---- any strides ----

// One side of a tile whose first `left` elements lie in a row, from `row` on, and the others in the next one, from `next`
// on, all of them `step` bytes apart. A packed side has none.
template <u32 Bits, u32 Elements, typename Word>
struct TileRows {
    typedef Tile<Elements * Bits / 8> Whole;
    u8 *row, *next;
    i64 step;
    u32 left;

    // Whether all of its elements are aligned.
    GPUCAST_INLINE bool aligned() const {
        return Bits < 8 || ((address(row) | address(next) | u64(step)) & (Bits / 8 - 1)) == 0;
    }

    // Whether it is a tile in memory, at an aligned address.
    GPUCAST_INLINE bool dense() const {
        return step == Bits / 8 && (left == Elements || next == row + left * step) && (address(row) & (Whole::piece - 1)) == 0;
    }

    // Calls a function with the number and the address of each element.
    template <typename Function>
    GPUCAST_INLINE void each(Function function) const {
        u8* at = row;
        if (left == Elements) {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i, at += step) function(i, at);
            return;
        }
        ptx::mark_rare();
#pragma unroll
        for (u32 i = 0; i < Elements; ++i, at += step) {
            if (i == left) at = next;
            function(i, at);
        }
    }

    GPUCAST_INLINE void load(Whole& tile) const {
        if (dense()) {
            load_aligned(row, tile);
            return;
        }
        Tile<Bits / 8> one[Elements];
        each([&](u32 i, const u8* from) { load_aligned(from, one[i]); });
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) put<Bits>(tile, i, get<Bits, Word>(one[i], 0));
    }

    GPUCAST_INLINE void store(const Whole& tile) const {
        if (dense()) {
            store_aligned(row, tile);
            return;
        }
        each([&](u32 i, u8* to) {
            Tile<Bits / 8> one = {};
            put<Bits>(one, 0, get<Bits, Word>(tile, i));
            store_aligned(to, one);
        });
    }
};

// One thread casts a tile, as that of contiguous arrays, of elements that follow each other in row-major order. A packed
// side has no strides: it is the row-major stream. Of one dimension a thread casts elements a block's width apart, so that
// a warp's accesses share sectors, unless their random words follow each other.
template <u32 SrcBits, u32 DstBits, u32 Elements, u32 Threads, u32 MaxDims, typename Converter>
GPUCAST_INLINE void cast_strided(
    const u8* src, u32 src_bit, u8* dst, i64 n, const Dims<MaxDims>& dims, u32 number, Converter& converter) {
    typedef typename WordOf<(SrcBits > 32 || DstBits > 32)>::type Word;
    const i64 src_step = dims.src[dims.count - 1], dst_step = dims.dst[dims.count - 1];
    const i64 block_begin = i64(number) * (Threads * Elements);
    TileRows<SrcBits, Elements, Word> in_rows = {const_cast<u8*>(src), const_cast<u8*>(src), src_step, Elements};
    TileRows<DstBits, Elements, Word> out_rows = {dst, dst, dst_step, Elements};
    const bool apart = SrcBits >= 8 && DstBits >= 8 && !Converter::stochastic && dims.count == 1
                       && block_begin + Threads * Elements <= n && in_rows.aligned() && out_rows.aligned();
    const i64 begin = block_begin + threadIdx.x * (apart ? 1 : Elements);
    if (begin >= n) return;
    // The packed sides.
    const u64 src_at = src_bit + u64(begin) * SrcBits;
    const u8* from = src + (src_at >> 3);
    u8* to = dst + (u64(begin) * DstBits >> 3);
    if (apart) {
        in_rows.row += begin * src_step;
        out_rows.row += begin * dst_step;
        in_rows.step *= Threads;
        out_rows.step *= Threads;
    } else {
        Writer<DstBits, Word> writer = {to, 0, 0};
        const i64 end = begin + Elements < n ? begin + Elements : n;
#pragma unroll 1
        for (i64 i = begin;;) {
            // The row of the element, and the one in which its tile goes on.
            Offsets at, next;
            u32 left = 0;
#pragma unroll 1
            do {
                next = offsets(dims, dims.count, u64(i + left), n >> 32 != 0);
                if (left != 0) break;
                at = next;
                left = at.left < Elements ? at.left : Elements;
            } while (left < Elements);
            in_rows = {const_cast<u8*>(src) + at.src, const_cast<u8*>(src) + next.src, src_step, left};
            out_rows = {dst + at.dst, dst + next.dst, dst_step, left};
            if (i == begin && end - begin == Elements && Elements - left <= dims.length[dims.count - 1] && in_rows.aligned()
                && out_rows.aligned()) {
                break;
            }
            // The end of the array, rows shorter than a tile, elements between aligned addresses.
            ptx::mark_rare();
            const i64 row_end = i + at.left < end ? i + at.left : end;
#pragma unroll 1
            for (; i < row_end; ++i, at.src += src_step, at.dst += dst_step) {
                Word code;
                if constexpr (SrcBits < 8) code = read_element<SrcBits, Word>(src, src_bit + u64(i) * SrcBits);
                else code = load_element<SrcBits, Word>(src + at.src);
                code = converter.one(code, i);
                if constexpr (DstBits < 8) writer.put(code);
                else store_element<DstBits>(dst + at.dst, code);
            }
            if (i == end) {
                if constexpr (DstBits < 8) writer.finish();
                return;
            }
        }
    }
    typename TileRows<SrcBits, Elements, Word>::Whole in = {};
    typename TileRows<DstBits, Elements, Word>::Whole out = {};
    if constexpr (SrcBits < 8) {
        const u32 bit = u32(src_at) & 7;
        if (bit == 0 && (address(from) & (in.piece - 1)) == 0) load_aligned(from, in);
        else load_part(from, bit, bit, bit + Elements * SrcBits, in);
    } else {
        in_rows.load(in);
    }
    converter.template tile<Elements>(in, out, begin);
    if constexpr (DstBits < 8) {
        if ((address(to) & (out.piece - 1)) == 0) store_aligned(to, out);
        else store_part(to, 0, Elements * DstBits, out);
    } else {
        out_rows.store(out);
    }
}

// ---- transposed: the dense dimension of the source is not that of the destination ----

// Casts a whole rectangle to shared memory.
template <typename Src, typename Dst, u32 SrcBits, u32 Threads, typename Rule, u32 Rows, u32 Columns>
GPUCAST_INLINE void cast_square(const u8* src, i64 stride, Square<Dst::bits, Rows, Columns>& square, Rule) {
    typedef SquarePart<SrcBits, Rows, Columns> Part;
    const u32 warps = Threads / 32, steps = (Part::count + warps - 1) / warps, warp = threadIdx.x / 32;
    if (u32(Part::count) < warps && warp >= u32(Part::count)) return;
    Tile<Part::bytes> in[steps][4];
#pragma unroll
    for (u32 i = 0; i < steps; ++i) {
        const Part part(warp + i * warps);
        part.load(src, stride, in[i]);
    }
#pragma unroll
    for (u32 i = 0; i < steps; ++i) {
        const Part part(warp + i * warps);
        Tile<SrcBits / 2> turned[Part::rows];
        part.turn(in[i], turned);
#pragma unroll
        for (u32 k = 0; k < Part::rows; ++k) {
            Tile<Dst::bits / 2> codes = {};
            Arithmetic<Src, Dst, SrcBits, Rule>().template tile<4>(turned[k], codes, 0);
            u32* to = reinterpret_cast<u32*>(square.code + (part.row + k) * Square<Dst::bits, Rows, Columns>::stride + part.column);
#pragma unroll
            for (u32 j = 0; j < Tile<Dst::bits / 2>::words; ++j) to[j] = codes.word[j];
        }
    }
}

// Where a rectangle with a number begins in a dimension of a length.
template <u32 Side>
GPUCAST_INLINE u64 square_begin(u32 number, u64 length) {
    const u64 begin = u64(number) * Side;
    return length < Side || begin + Side <= length ? begin : length - Side;
}

// One block casts a rectangle: its threads read along the source's dense dimension, the last but one, and write along the
// destination's, the last. The last ones begin earlier where they would end behind the array, and what they share with
// others is cast twice. Arrays smaller than a rectangle, and those between aligned addresses, are cast element by element.
template <typename Src, typename Dst, u32 SrcBits, u32 Rows, u32 Columns, u32 Threads, u32 MaxDims, typename Rule>
GPUCAST_INLINE void cast_transposed(
    const u8* src, u8* dst, const Dims<MaxDims>& dims, Square<Dst::bits, Rows, Columns>& square, Rule rule) {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    typedef typename Square<Dst::bits, Rows, Columns>::Code Code;
    const u32 row = dims.count - 2, column = dims.count - 1;
    // Numbers of squares, which are fewer than the blocks of a launch.
    const u32 across = u32((dims.length[column] + Columns - 1) / Columns), down = u32((dims.length[row] + Rows - 1) / Rows);
    const u32 squares = blockIdx.x / across, outer = squares / down;
    const u64 first_column = square_begin<Columns>(blockIdx.x - squares * across, dims.length[column]);
    const u64 first_row = square_begin<Rows>(squares - outer * down, dims.length[row]);
    const u64 columns = dims.length[column] - first_column, rows = dims.length[row] - first_row;
    const Offsets at = row == 0 ? Offsets{0, 0, 0} : offsets(dims, row, outer, false);
    const i64 src_stride = dims.src[column], dst_stride = dims.dst[row];
    src += at.src + i64(first_row) * dims.src[row] + i64(first_column) * src_stride;
    dst += at.dst + i64(first_row) * dst_stride + i64(first_column) * dims.dst[column];
    const u32 stride = Square<Dst::bits, Rows, Columns>::stride;
    const u32 src_word = SrcBits < 32 ? 4 : SrcBits / 8, dst_word = Dst::bits < 32 ? 4 : Dst::bits / 8;
    const bool whole = rows >= Rows && columns >= Columns && ((address(src) | u64(src_stride)) & (src_word - 1)) == 0
                       && ((address(dst) | u64(dst_stride)) & (dst_word - 1)) == 0;
    // Element by element a warp walks along a dense dimension: the source's, then the destination's.
    if (whole) {
        cast_square<Src, Dst, SrcBits, Threads>(src, src_stride, square, rule);
    } else {
        ptx::mark_rare();
        const u32 lines = Threads / Rows, line = threadIdx.x / Rows, place = threadIdx.x % Rows;
        const u8* from = src + place * (SrcBits / 8) + line * src_stride;
#pragma unroll 1
        for (u32 c = line; c < Columns && c < columns && place < rows; c += lines, from += lines * src_stride) {
            square.code[place * stride + c] = Code(cast_code<Src, Dst>(load_element<SrcBits, Word>(from), rule));
        }
    }
    GPUCAST_BARRIER();
    if (whole) {
        store_square<Dst::bits, Rows, Columns, Threads>(dst, dst_stride, square);
    } else {
        const u32 lines = Threads / Columns, line = threadIdx.x / Columns, place = threadIdx.x % Columns;
        u8* to = dst + place * (Dst::bits / 8) + line * dst_stride;
#pragma unroll 1
        for (u32 r = line; r < Rows && r < rows && place < columns; r += lines, to += lines * dst_stride) {
            store_element<Dst::bits>(to, Word(square.code[r * stride + place]));
        }
    }
}

}  // namespace gpucast

// Macros, because the name of a kernel is a pair's. gpucast/kernel/cast_kernel.py defines NAME_rule, and for a look-up NAME_entry_rule.
#define GPUCAST_CONTIGUOUS(NAME, SRC, DST, SRC_BITS, ELEMENTS, UNROLL, THREADS)                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n) {                         \
        const gpucast::Arithmetic<gpucast::SRC, gpucast::DST, SRC_BITS, gpucast::NAME##_rule> converter = {};           \
        gpucast::cast_contiguous<SRC_BITS, gpucast::DST::bits, ELEMENTS, UNROLL, THREADS>(                             \
            src, src_bit, dst, n, blockIdx.x, converter);                                                              \
    }
#define GPUCAST_LOOKUP(NAME, SRC, DST, ENTRY, SRC_BITS, ELEMENTS, UNROLL, THREADS)                                      \
    namespace gpucast {                                                                                                \
    static __device__ const Table<TableShape<SRC, ENTRY, SRC_BITS>> NAME##_entries =                                   \
        make_table<SRC, ENTRY, SRC_BITS, NAME##_entry_rule>();                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n) {                         \
        typedef gpucast::Lookup<gpucast::SRC, gpucast::DST, gpucast::ENTRY, SRC_BITS, gpucast::NAME##_rule, THREADS>    \
            Converter;                                                                                                 \
        __shared__ gpucast::FourWords table[Converter::shared_bytes / sizeof(gpucast::FourWords)];                     \
        const Converter converter = {gpucast::NAME##_entries, table};                                                  \
        gpucast::cast_contiguous<SRC_BITS, gpucast::DST::bits, ELEMENTS, UNROLL, THREADS>(                             \
            src, src_bit, dst, n, blockIdx.x, converter);                                                              \
    }
#define GPUCAST_STRIDED(NAME, SRC, DST, SRC_BITS, MAX_DIMS, ELEMENTS, THREADS)                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::Dims<MAX_DIMS> dims) {                                                   \
        const gpucast::Arithmetic<gpucast::SRC, gpucast::DST, SRC_BITS, gpucast::NAME##_rule> converter = {};           \
        gpucast::cast_strided<SRC_BITS, gpucast::DST::bits, ELEMENTS, THREADS>(                                        \
            src, src_bit, dst, n, dims, blockIdx.x, converter);                                                        \
    }
#define GPUCAST_TRANSPOSED(NAME, SRC, DST, SRC_BITS, MAX_DIMS, ROWS, COLUMNS, THREADS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64,                                     \
             const __grid_constant__ gpucast::Dims<MAX_DIMS> dims) {                                                   \
        __shared__ gpucast::Square<gpucast::DST::bits, ROWS, COLUMNS> square;                                          \
        gpucast::cast_transposed<gpucast::SRC, gpucast::DST, SRC_BITS, ROWS, COLUMNS, THREADS>(                        \
            src, dst, dims, square, gpucast::NAME##_rule());                                                           \
    }
