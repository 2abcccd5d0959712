// SPDX-License-Identifier: Apache-2.0
// Casts of few bits by a look-up table: one entry has the codes of all elements that lie in up to 8 bits of the source.
//
// The table is computed by the generic rule while the kernel is compiled. Each block copies it to shared memory, and
// whatever the codes, there are no bank conflicts: each word of a table of up to 32 is in a bank of its own, and of a
// longer one each lane of a warp has its own copy in its own bank.
namespace gpucast {

// One element, without a fast path.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_CONSTANT Word exact_code(Word code, Rule rule) {
    return encode<Dst>(decode<Src>(code, typename Src::family()), rule, typename Dst::family());
}

// ---- sixteen codes in registers: sources of 4 bits, of which a byte permute looks up four at a time ----

// The word with the codes that sources `first` to `first` + 3 become.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT u32 four_codes(u32 first, Rule rule) {
    u32 codes = 0;
    for (u32 i = 0; i < 4; ++i) codes |= exact_code<Src, Dst>(first + i, rule) << (8 * i);
    return codes;
}

// Eight codes of a source, in a word, to the bytes of two words, for results of fewer than 8 bits, or of 8 bits with a
// sign where the source has one. Of a byte whose top bit is 0 a selector of 8 or more gives 0, and so each half of the
// sources leaves the other's places empty.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void look_up_nibbles(u32 nibbles, u32& low, u32& high, Rule) {
    static_assert(Src::bits == 4 && Dst::bits <= 8, "sixteen codes whose top bit is 0");
    constexpr u32 magnitudes = 0x7f7f7f7f;
    constexpr u32 codes[4] = {four_codes<Src, Dst>(0, Rule()) & magnitudes, four_codes<Src, Dst>(4, Rule()) & magnitudes,
                              four_codes<Src, Dst>(8, Rule()) & magnitudes, four_codes<Src, Dst>(12, Rule()) & magnitudes};
    const u32 others = nibbles ^ 0x88888888;
    low = ptx::prmt(codes[0], codes[1], nibbles) | ptx::prmt(codes[2], codes[3], others);
    high = ptx::prmt(codes[0], codes[1], nibbles >> 16) | ptx::prmt(codes[2], codes[3], others >> 16);
    if constexpr (Dst::bits == 8 && Src::sign_code != 0) {
        const u32 even = nibbles << 4 & repeated<8>(0x80), odd = nibbles & repeated<8>(0x80);
        low |= ptx::prmt(even, odd, 0x5140);
        high |= ptx::prmt(even, odd, 0x7362);
    }
}

// Whether it knows a type of 8 bits.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_nibble_codes() {
    if constexpr (!Src::is_int || !Dst::is_float || Dst::bits != 8) return false;
    else return GPUCAST_ARCH >= 1000 && Src::bits == 4 && Dst::sign_code != 0;
}

// The low two bits of eight integers of 4 bits, or of the integer parts of eight FLOAT4E2M1, in bytes 1 and 3. The others
// are arbitrary.
template <typename Src>
GPUCAST_INLINE u32 low_bits_of_nibbles(u32 nibbles) {
    u32 pairs;
    if constexpr (Src::is_int) {
        pairs = (nibbles & 0x33333333) * 20;
    } else {
        // Each bit of a code where its third one is.
        const u32 fraction = nibbles << 2, odd = nibbles << 1, two = nibbles, sign = nibbles >> 1;
        const u32 first = (~two & odd) | (two & ~odd & fraction), second = two & (~odd | fraction);
        pairs = ((first & 0x44444444) + 2 * ((second ^ (sign & first)) & 0x44444444)) * 5;
    }
    // Two and then four codes are brought together by shifts to the left, which multiplications do.
    return (pairs & 0xf0f0f0f0) * 17;
}

// ---- two codes, for zero and for all others ----

template <typename Dst>
GPUCAST_CONSTANT bool has_bool_codes() {
    return GPUCAST_ARCH >= 1000 && !Dst::is_int && !Dst::is_bool && Dst::bits <= 8;
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 bool_codes(u32 bytes, Rule) {
    constexpr u32 zero = repeated<8>(exact_code<Src, Dst>(0u, Rule())), other = repeated<8>(exact_code<Src, Dst>(1u, Rule()));
    const u32 top = ((bytes & repeated<8>(0x7f)) + repeated<8>(0x7f)) | bytes;
    return zero ^ (ptx::prmt(top, 0, 0xba98) & (zero ^ other));
}

// ---- tables in shared memory ----

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
        entry_bytes = entry_bits <= 8 ? 1 : entry_bits <= 16 ? 2 : 4,
        words = (1u << index_bits) * entry_bytes / 4,
        copies = words <= 32 ? 1 : 32,
        bytes = words * copies * 4,
        // What is stored at once: different words, or a word's copies for four lanes.
        stored = copies == 1 ? words / 4 : words
    };
    static_assert(u32(entry_bits) <= 8 * u32(entry_bytes), "an entry fits");
};

// One store.
struct alignas(16) FourWords {
    u32 word[4];
};

template <typename Shape>
struct Table {
    FourWords stored[Shape::stored];
};

template <typename Src, typename Dst, u32 SrcBits, typename Rule>
constexpr __device__ Table<TableShape<Src, Dst, SrcBits>> make_table() {
    typedef TableShape<Src, Dst, SrcBits> Shape;
    Table<Shape> table = {};
    for (u32 index = 0; index < 1u << Shape::index_bits; ++index) {
        u32 entry = 0;
        for (u32 i = 0; i < Shape::elements; ++i) {
            const u32 code = exact_code<Src, Dst>(index >> (i * SrcBits) & u32(Src::mask), Rule());
            entry |= (Dst::bits == 32 ? code >> 16 : code) << (i * Shape::code_bits);
        }
        const u32 per_word = 4 / Shape::entry_bytes, word = index / per_word;
        const u32 bits = entry << (index % per_word * 8 * Shape::entry_bytes);
        if (Shape::copies == 1) {
            table.stored[word / 4].word[word % 4] |= bits;
        } else {
            for (u32 copy = 0; copy < 4; ++copy) table.stored[word].word[copy] |= bits;
        }
    }
    return table;
}

template <typename Shape, u32 Threads>
GPUCAST_INLINE void fill_table(FourWords* shared, const Table<Shape>& table) {
    if constexpr (Shape::copies == 1) {
        if (threadIdx.x < Shape::stored) shared[threadIdx.x] = table.stored[threadIdx.x];
    } else {
        const u32 stores = Shape::copies / 4, rows = Threads / stores;
        static_assert(Shape::words % rows == 0, "every thread stores as often");
#pragma unroll
        for (u32 row = 0; row < Shape::words; row += rows) {
            shared[row * stores + threadIdx.x] = table.stored[row + threadIdx.x / stores];
        }
    }
}

// The entry at an offset in bytes, which in a table with copies includes that of the caller's lane in a row (four bytes
// for each lane).
template <typename Shape>
GPUCAST_INLINE u32 entry_at(const FourWords* shared, u32 offset) {
    const u8* entry = reinterpret_cast<const u8*>(shared) + offset;
    if constexpr (Shape::entry_bytes == 1) return *entry;
    if constexpr (Shape::entry_bytes == 2) return *reinterpret_cast<const u16*>(entry);
    if constexpr (Shape::entry_bytes == 4) return *reinterpret_cast<const u32*>(entry);
}

// The entry of an index.
template <typename Shape>
GPUCAST_INLINE u32 look_up(const FourWords* shared, u32 lane, u32 index) {
    const u32 byte = index * Shape::entry_bytes;
    return entry_at<Shape>(shared, Shape::copies == 1 ? byte : (byte & ~3u) * Shape::copies | 4 * lane | (byte & 3));
}

// The entries of the four bytes of a word. Two offsets at a time are computed in the halves of a word.
template <typename Shape>
GPUCAST_INLINE void look_up_bytes(const FourWords* shared, u32 lane, u32 bytes, u32 (&entry)[4]) {
    static_assert(Shape::index_bits == 8 && Shape::entry_bytes <= 2 && Shape::copies == 32, "offsets of 14 bits");
    // The index's upper bits choose a row of 128 bytes, its low ones the position in a word.
    const u32 log = Shape::entry_bytes - 1, up = 5 + log;
    const u32 places = (4 - Shape::entry_bytes) * 0x00010001, lanes = lane * 0x00040004;
    u32 even, odd;
    if constexpr (GPUCAST_ARCH >= 1000) {
        // A multiplication shifts and adds at once, on a unit that has little else to do.
        const u32 own = (0xff - (4u >> log) + 1) * 0x00010001, upper = bytes >> 8;
        even = ptx::mad(bytes & own, 1u << up, lanes) | (bytes << log & places);
        odd = ptx::mad(upper & own, 1u << up, lanes) | (upper << log & places);
    } else {
        const u32 rows = (0x7f80u >> (2 - log) & 0x3f80) * 0x00010001;
        even = ((bytes << up & rows) | lanes) | (bytes << log & places);
        odd = ((bytes >> (8 - up) & rows) | lanes) | (bytes >> (8 - log) & places);
    }
    entry[0] = entry_at<Shape>(shared, even & 0xffff);
    entry[1] = entry_at<Shape>(shared, odd & 0xffff);
    entry[2] = entry_at<Shape>(shared, even >> 16);
    entry[3] = entry_at<Shape>(shared, odd >> 16);
}

}  // namespace gpucast
