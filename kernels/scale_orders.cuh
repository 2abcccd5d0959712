// SPDX-License-Identifier: Apache-2.0
// Where the scale of a block lies in memory, for each order of gpucast/quantization/swizzle.py: `F::order` of the
// kernels that quantize.
namespace gpucast {

enum ScaleOrder : u32 { linear = 0, order_128x4 = 1, order_8x4 = 2, mn_major = 3 };

// How many rows a multiple of which the order is padded to.
GPUCAST_CONSTANT u32 order_rows(u32 order) { return order == order_128x4 ? 128 : order == order_8x4 ? 8 : 4; }
GPUCAST_INLINE i64 padded_rows(u32 order, i64 rows) {
    const i64 height = order_rows(order);
    return (rows + height - 1) / height * height;
}

// The index of the scale (row, column). `rows` are those of "mn_major" with their padding. In each order but "linear"
// the scales of a row make words of 4 bytes, and four of its rows make 16 bytes: those 32 apart in "128x4", else
// neighbours.
template <u32 Bytes>
GPUCAST_INLINE i64 scale_place(u32 order, i64 row, i64 column, i64 rows, i64 columns) {
    if (order == linear) return row * columns + column;
    const u32 width = 4 / Bytes;
    if (order == mn_major) return (column / width * rows + row) * width + column % width;
    const i64 height = order_rows(order), tile = row / height * ((columns + 3) / 4) + column / 4;
    const i64 in_tile = order == order_8x4 ? row % 8 * 4 : row % 32 * 16 + row % 128 / 32 * 4;
    return tile * (height * 4) + in_tile + column % 4;
}

// Stores a scale of a matrix of rows x columns of them, and behind the last of a row or column `padding`.
template <u32 Bytes>
GPUCAST_INLINE void store_scale(
    u8* scales, u32 order, i64 row, i64 column, i64 rows, i64 columns, u32 code, u32 padding = 0) {
    const i64 height = order == mn_major ? padded_rows(order, rows) : 0;
    Tile<Bytes> one = {{code}};
    store_aligned(scales + scale_place<Bytes>(order, row, column, height, columns) * Bytes, one);
    if (order == linear || (row + 1 != rows && column + 1 != columns)) return;
    ptx::mark_rare();
    const i64 down = row + 1 == rows ? padded_rows(order, rows) : row + 1;
    const i64 across = column + 1 == columns ? (columns + 4 / Bytes - 1) / (4 / Bytes) * (4 / Bytes) : column + 1;
    one.word[0] = padding;
    for (i64 r = row; r < down; ++r) {
        for (i64 c = column; c < across; ++c) {
            if (r == row && c == column) continue;
            store_aligned(scales + scale_place<Bytes>(order, r, c, height, columns) * Bytes, one);
        }
    }
}

}  // namespace gpucast
