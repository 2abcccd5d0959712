// SPDX-License-Identifier: Apache-2.0
// Where the scale of a block lies in memory: each order of scales is one struct, which the row of
// gpucast/quantization/scale_orders.py names. Kernels that quantize have it as `F::order`.
namespace gpucast {

// Bytes of the scales of a row that stay together in every order but `Linear`.
enum : u32 { scale_word = 4 };

// An order has
//   height()   the number of rows a multiple of which it is padded to
//   apart      how far apart the rows are whose scales are words next to each other
//   place()    the index of the scale (row, column) of `Bytes`; `rows` are those with their padding

// Row after row, without padding.
struct Linear {
    enum : u32 { apart = 1 };
    static GPUCAST_CONSTANT u32 height() { return 1; }
    template <u32 Bytes>
    static GPUCAST_INLINE i64 place(i64 row, i64 column, i64, i64 columns) {
        return row * columns + column;
    }
};

// Tiles of `Height` rows and 4 columns, in row-major order; in a tile rows that are `Apart` apart follow each other.
template <u32 Height, u32 Apart>
struct Tiled {
    enum : u32 { apart = Apart };
    static GPUCAST_CONSTANT u32 height() { return Height; }
    template <u32 Bytes>
    static GPUCAST_INLINE i64 place(i64 row, i64 column, i64, i64 columns) {
        const i64 tall = Height, tile = row / tall * ((columns + 3) / 4) + column / 4;
        const i64 in_tile = Apart == 1 ? row % Height * 4 : row % Apart * (Height / Apart * 4) + row % Height / Apart * 4;
        return tile * (tall * 4) + in_tile + column % 4;
    }
};
// As cuBLAS and the tensor cores of Blackwell read them.
typedef Tiled<128, 32> Order128x4;
// As vLLM and FlashInfer, for few rows.
typedef Tiled<8, 1> Order8x4;

// Columns of words one after the other, as DeepGEMM reads them.
struct MnMajor {
    enum : u32 { apart = 1 };
    static GPUCAST_CONSTANT u32 height() { return 4; }
    template <u32 Bytes>
    static GPUCAST_INLINE i64 place(i64 row, i64 column, i64 rows, i64) {
        const u32 width = scale_word / Bytes;
        return (column / width * rows + row) * width + column % width;
    }
};

template <typename Order>
GPUCAST_INLINE i64 padded_rows(Order order, i64 rows) {
    const i64 height = order.height();
    return (rows + height - 1) / height * height;
}

// Stores a scale of a matrix of rows x columns of them, and behind the last of a row or column `padding`.
template <u32 Bytes, typename Order>
GPUCAST_INLINE void store_scale(
    u8* scales, Order order, i64 row, i64 column, i64 rows, i64 columns, u32 code, u32 padding = 0) {
    const u32 width = scale_word / Bytes;
    const i64 height = padded_rows(order, rows);
    Tile<Bytes> one = {{code}};
    store_aligned(scales + order.template place<Bytes>(row, column, height, columns) * Bytes, one);
    // Only an order of single rows has no padding.
    if (order.height() == 1 || (row + 1 != rows && column + 1 != columns)) return;
    ptx::mark_rare();
    const i64 down = row + 1 == rows ? padded_rows(order, rows) : row + 1;
    const i64 across = column + 1 == columns ? (columns + width - 1) / width * width : column + 1;
    one.word[0] = padding;
    for (i64 r = row; r < down; ++r) {
        for (i64 c = column; c < across; ++c) {
            if (r == row && c == column) continue;
            store_aligned(scales + order.template place<Bytes>(r, c, height, columns) * Bytes, one);
        }
    }
}

}  // namespace gpucast
