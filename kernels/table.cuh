// SPDX-License-Identifier: Apache-2.0
// Casts of few bits by a look-up table: one entry has the codes of all elements that lie in up to 8 bits of the source.
//
// The table is computed by the generic rule while the kernel is compiled. Each block copies it to shared memory so that
// every lane of a warp has its own copy in its own bank: whatever the codes, there are no bank conflicts.
namespace gpucast {

// One element, without a fast path.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_CONSTANT Word exact_code(Word code, Rule rule) {
    return encode<Dst>(decode<Src>(code, typename Src::family()), rule, typename Dst::family());
}

// The shape of a table for elements of SrcBits bits, of which the lower Src::bits count. Dst is the type of the
// entries' codes; of 32-bit codes an entry has the upper half, because the lower half is zero for all values of so
// narrow sources.
template <typename Src, typename Dst, u32 SrcBits>
struct TableShape {
    enum : u32 {
        code_bits = u32(Dst::bits) < 16 ? u32(Dst::bits) : 16,
        elements = SrcBits == 4 && 2 * code_bits <= 16   ? 2
                   : SrcBits == 2 && 4 * code_bits <= 16 ? 4
                   : SrcBits == 2 && 2 * code_bits <= 32 ? 2
                                                         : 1,
        index_bits = elements * SrcBits,
        entry_bits = elements * code_bits,
        // Wider entries take fewer instructions to address; they are chosen where the table stays small.
        entry_bytes = index_bits <= 6 ? 4 : entry_bits <= 8 ? 1 : 2,
        // An entry of four bytes can hold its code at every position in a byte, which saves shifts.
        places = entry_bytes == 4 && (entry_bits == 2 || entry_bits == 4) ? 8 / entry_bits : 1,
        words = (1u << index_bits) * entry_bytes / 4,
        // In shared memory each lane has its own copy of each word.
        copies = 32,
        bytes = words * copies * 4
    };
    static_assert(u32(entry_bits) <= 8 * u32(entry_bytes), "an entry fits");
};

// Four lanes' copies of a word, one store.
struct alignas(16) FourCopies {
    u32 word[4];
};

template <u32 Words>
struct Table {
    FourCopies word[Words];
};

template <typename Src, typename Dst, u32 SrcBits, typename Rule>
constexpr __device__ Table<TableShape<Src, Dst, SrcBits>::words> make_table() {
    typedef TableShape<Src, Dst, SrcBits> Shape;
    Table<Shape::words> table = {};
    for (u32 index = 0; index < 1u << Shape::index_bits; ++index) {
        u32 entry = 0;
        for (u32 i = 0; i < Shape::elements; ++i) {
            const u32 code = exact_code<Src, Dst>(index >> (i * SrcBits) & u32(Src::mask), Rule());
            entry |= (Dst::bits == 32 ? code >> 16 : code) << (i * Shape::code_bits);
        }
        for (u32 place = 1; place < Shape::places; ++place) {
            entry |= (entry & 0xff) << (place * (8 + Shape::entry_bits));
        }
        const u32 per_word = 4 / Shape::entry_bytes;
        for (u32 copy = 0; copy < 4; ++copy) {
            table.word[index / per_word].word[copy] |= entry << (index % per_word * 8 * Shape::entry_bytes);
        }
    }
    return table;
}

template <typename Shape, u32 Threads>
GPUCAST_INLINE void fill_table(FourCopies* shared, const Table<Shape::words>& table) {
    const u32 stores = Shape::copies / 4, rows = Threads / stores;
#pragma unroll
    for (u32 row = 0; row < Shape::words; row += rows) {
        if (Shape::words < rows && threadIdx.x >= Shape::words * stores) break;
        shared[row * stores + threadIdx.x] = table.word[row + threadIdx.x / stores];
    }
}

// The entry at an offset in bytes, which includes that of the caller's lane in a row (four bytes for each lane).
template <typename Shape>
GPUCAST_INLINE u32 entry_at(const FourCopies* shared, u32 offset, u32 place = 0) {
    const u8* entry = reinterpret_cast<const u8*>(shared) + place + offset;
    if constexpr (Shape::entry_bytes == 1 || Shape::places != 1) return *entry;
    if constexpr (Shape::entry_bytes == 2) return *reinterpret_cast<const u16*>(entry);
    if constexpr (Shape::entry_bytes == 4) return *reinterpret_cast<const u32*>(entry);
}

// The entry of an index; of an entry with several positions, the code at one of them.
template <typename Shape>
GPUCAST_INLINE u32 look_up(const FourCopies* shared, u32 lane, u32 index, u32 place = 0) {
    const u32 byte = index * Shape::entry_bytes;
    return entry_at<Shape>(shared, (byte & ~3u) * Shape::copies | 4 * lane | (byte & 3), place);
}

// The entries of the four bytes of a word. Two offsets at a time are computed in the halves of a word.
template <typename Shape>
GPUCAST_INLINE void look_up_bytes(const FourCopies* shared, u32 lane, u32 bytes, u32 (&entry)[4]) {
    static_assert(Shape::index_bits == 8 && Shape::entry_bytes <= 2 && Shape::copies == 32, "offsets of 14 bits");
    // The index's upper bits choose a row of 128 bytes, its low ones the position in a word.
    const u32 log = Shape::entry_bytes - 1, up = 5 + log;
    const u32 rows = (0x7f80u >> (2 - log) & 0x3f80) * 0x00010001, places = (4 - Shape::entry_bytes) * 0x00010001;
    const u32 lanes = lane * 0x00040004;
    const u32 even = ((bytes << up & rows) | lanes) | (bytes << log & places);
    const u32 odd = ((bytes >> (8 - up) & rows) | lanes) | (bytes >> (8 - log) & places);
    entry[0] = entry_at<Shape>(shared, even & 0xffff);
    entry[1] = entry_at<Shape>(shared, odd & 0xffff);
    entry[2] = entry_at<Shape>(shared, even >> 16);
    entry[3] = entry_at<Shape>(shared, odd >> 16);
}

}  // namespace gpucast
