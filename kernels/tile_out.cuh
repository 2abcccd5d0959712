// SPDX-License-Identifier: Apache-2.0
// The codes of a tile from shared memory to a result, for quantize_tiles.cu.
namespace gpucast {

// The codes of a tile from an element on, in the order of a result.
template <bool swapped, typename Kernel>
GPUCAST_INLINE Tile<Kernel::unit * Kernel::DType::bits / 8> packed(const Kernel& work, u32 line, u32 first) {
    typedef typename Kernel::DType DType;
    const u32 unit = Kernel::unit;
    Tile<unit * DType::bits / 8> out = {};
    if constexpr (u32(Kernel::code_bits) == u32(DType::bits)) {
        load_words(swapped ? work.at_swapped(first, line) : work.at_same(line, first), out.word);
        return out;
    }
    u32 codes[unit / 4];
    load_words(swapped ? work.at_swapped(first, line) : work.at_same(line, first), codes);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) put_lanes<DType::bits, 4>(out, 4 * i, codes[i]);
    return out;
}

// Writes the codes of `lines` lines of `length` elements. The first line is at element `begin` of the result, each
// other one `stride` elements behind the last; both are whole bytes.
template <bool swapped, u32 Lines, u32 Length, typename Kernel>
GPUCAST_INLINE void put_lines(const Kernel& work, u8* data, i64 begin, i64 stride, u32 lines, u32 length) {
    typedef typename Kernel::DType DType;
    typedef typename Kernel::Shape Shape;
    const u32 unit = Kernel::unit;
    typedef Tile<unit * DType::bits / 8> Out;
    const u32 count = Lines * (Length / unit), mine = threadIdx.x;
    static_assert(count % Shape::threads == 0 && Shape::threads % (Length / unit) == 0, "each thread has a column of vectors");
    const u32 first = mine % (Length / unit) * unit, turns = count / Shape::threads, lines_of_turn = Shape::threads / (Length / unit);
    const u32 line = mine / (Length / unit);
    u8* to = data + ((begin + line * stride + first) * i64(DType::bits) >> 3);
    const i64 bytes_of_turn = lines_of_turn * stride * i64(DType::bits) >> 3;
    if (lines == Lines && length == Length && ((address(to) | u64(bytes_of_turn)) & (Out::piece - 1)) == 0) {
#pragma unroll
        for (u32 i = 0; i < turns; ++i) store_aligned(to + i * bytes_of_turn, packed<swapped>(work, line + i * lines_of_turn, first));
        return;
    }
    const u32 last = length - first < u32(unit) ? length - first : u32(unit);
#pragma unroll 1
    for (u32 i = 0; i < turns; ++i, to += bytes_of_turn) {
        ptx::mark_rare();
        if (i * lines_of_turn + line >= lines || first >= length) break;
        const Out out = packed<swapped>(work, line + i * lines_of_turn, first);
        if (last == u32(unit) && (address(to) & (Out::piece - 1)) == 0) {
            store_aligned(to, out);
        } else if (last == u32(unit) && (address(to) & 3) == 0) {
#pragma unroll
            for (u32 j = 0; j < u32(Out::words); ++j) *reinterpret_cast<u32*>(to + 4 * j) = out.word[j];
        } else {
            store_part(to, 0, last * DType::bits, out);
        }
    }
}

template <typename G, typename Kernel>
GPUCAST_INLINE void put_out(const Kernel& work) {
    const TileArguments& given = work.given;
    if constexpr (Kernel::Shape::same) {
        const i64 begin = (work.matrix * given.rows + work.first_row) * given.columns + work.first_column;
        put_lines<false, G::tile_rows, G::tile_columns>(work, given.same.data, begin, given.columns, work.rows, work.columns);
    }
    if constexpr (Kernel::Shape::swapped) {
        const i64 begin = (work.matrix * given.columns + work.first_column) * given.rows + work.first_row;
        put_lines<true, G::tile_columns, G::tile_rows>(work, given.swapped.data, begin, given.rows, work.columns, work.rows);
    }
}

}  // namespace gpucast
