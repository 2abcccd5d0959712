// SPDX-License-Identifier: Apache-2.0
// Arrays with strides and transposed ones: where their elements are, and rectangles of them by way of shared memory.
namespace gpucast {

// ---- strided arrays ----

struct Offsets {
    i64 src, dst;
    // How many elements of its row follow, with itself, if 32 bits hold it; the last of the dimensions are the rows.
    u32 left;
};

// Where element i lies in the first `count` dimensions, at least one. `far`: i may need more than 32 bits, whose
// multiplication takes four times as long.
template <u32 MaxDims>
GPUCAST_INLINE Offsets offsets(const Dims<MaxDims>& dims, u32 count, u64 i, bool far) {
    Offsets found = {0, 0, 1};
    u64 left = dims.length[count - 1] - i;
#pragma unroll 1
    for (u32 d = count; --d > 0;) {
        const u64 length = dims.length[d];
        u64 rest, place;
        if (far) {
            ptx::mark_rare();
            rest = __umul64hi(i, dims.inverse[d]);
            place = i - rest * length;
        } else {
            rest = ptx::mul_wide(u32(i), u32(dims.inverse[d] >> 32)) >> 32;
            place = u32(i) - u32(rest) * u32(length);
        }
        // The quotient may be one too small.
        if (place >= length) {
            place -= length;
            ++rest;
        }
        found.src += i64(place) * dims.src[d];
        found.dst += i64(place) * dims.dst[d];
        if (d == count - 1) left = length - place;
        i = rest;
    }
    found.left = u32(left < ~0u ? left : ~0u);
    found.src += i64(i) * dims.src[0];
    found.dst += i64(i) * dims.dst[0];
    return found;
}

template <u32 Bits>
struct CodeOf {
    typedef u64 type;
};
template <>
struct CodeOf<8> {
    typedef u8 type;
};
template <>
struct CodeOf<16> {
    typedef u16 type;
};
template <>
struct CodeOf<32> {
    typedef u32 type;
};

// A rectangle of codes in shared memory. Rows are padded, so that a warp that writes four codes of several rows has few
// bank conflicts or none, and four codes are aligned.
template <u32 Bits, u32 Rows, u32 Columns>
struct alignas(16) Square {
    typedef typename CodeOf<Bits>::type Code;
    enum : u32 { stride = Columns + (Bits < 64 ? 4 : 2) };
    Code code[Rows * stride];
};

// A word of each of four columns, of halves or of bytes, to the words of as many rows as a word has.
GPUCAST_INLINE void turn_halves(const u32 (&column)[4], u32 (&row)[2][2]) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        row[0][i] = ptx::prmt(column[2 * i], column[2 * i + 1], 0x5410);
        row[1][i] = ptx::prmt(column[2 * i], column[2 * i + 1], 0x7632);
    }
}
GPUCAST_INLINE void turn_bytes(const u32 (&column)[4], u32 (&row)[4][1]) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 selector = i == 0 ? 0x5140 : 0x7362;
        const u32 left = ptx::prmt(column[0], column[1], selector), right = ptx::prmt(column[2], column[3], selector);
        row[2 * i][0] = ptx::prmt(left, right, 0x5410);
        row[2 * i + 1][0] = ptx::prmt(left, right, 0x7632);
    }
}

// A thread's part of a whole rectangle of a source that is dense along the columns: word by word (elements of 64 bits: two
// words) down four columns. Turned, it is four elements of each of `rows` rows.
template <u32 Bits, u32 Rows, u32 Columns>
struct SquarePart {
    enum : u32 {
        rows = Bits < 32 ? 32 / Bits : 1,
        bytes = rows * Bits / 8,
        words = bytes / 4,
        down = Rows / (8 * rows),
        count = down * (Columns / 16)
    };
    u32 row, column;

    // Eight threads read 32 bytes or more of a column, a warp sixteen columns.
    GPUCAST_INLINE explicit SquarePart(u32 part) {
        const u32 lane = threadIdx.x % 32;
        row = (part % down * 8 + lane % 8) * rows;
        column = (part / down * 4 + lane / 8) * 4;
    }
    GPUCAST_INLINE void load(const u8* src, i64 stride, Tile<bytes> (&in)[4]) const {
        const u8* from = src + row * (Bits / 8) + i64(column) * stride;
#pragma unroll
        for (u32 i = 0; i < 4; ++i, from += stride) load_aligned(from, in[i]);
    }
    static GPUCAST_INLINE void turn(const Tile<bytes> (&in)[4], Tile<Bits / 2> (&out)[rows]) {
        if constexpr (rows == 1) {
#pragma unroll
            for (u32 i = 0; i < 4 * words; ++i) out[0].word[i] = in[i / words].word[i % words];
        } else {
            const u32 columns[4] = {in[0].word[0], in[1].word[0], in[2].word[0], in[3].word[0]};
            u32 turned[rows][4 / rows];
            if constexpr (rows == 2) turn_halves(columns, turned);
            else turn_bytes(columns, turned);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) out[i / (4 / rows)].word[i % (4 / rows)] = turned[i / (4 / rows)][i % (4 / rows)];
        }
    }
};

// Writes a whole rectangle, a word at a time (elements of 64 bits: two), so that a warp writes neighbouring words.
template <u32 Bits, u32 Rows, u32 Columns, u32 Threads>
GPUCAST_INLINE void store_square(u8* dst, i64 stride, const Square<Bits, Rows, Columns>& square) {
    const u32 bytes = Bits < 32 ? 4 : Bits / 8, across = Columns * Bits / 8 / bytes, rows = Threads / across;
    const u32 row = threadIdx.x / across, place = threadIdx.x % across;
    u8* to = dst + i64(row) * stride + place * bytes;
#pragma unroll
    for (u32 i = 0; i < Rows; i += rows, to += rows * stride) {
        const u32* held = reinterpret_cast<const u32*>(square.code + (i + row) * Square<Bits, Rows, Columns>::stride) + place * (bytes / 4);
        Tile<bytes> tile;
#pragma unroll
        for (u32 j = 0; j < bytes / 4; ++j) tile.word[j] = held[j];
        store_aligned(to, tile);
    }
}

}  // namespace gpucast
