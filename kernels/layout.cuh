// SPDX-License-Identifier: Apache-2.0
// Elements of 2, 4, 6, 8, 16, 32 or 64 bits to and from memory. Nothing here knows what the bits mean.
//
// An array is one little-endian stream of bits, as ONNX raw_data has it: element i begins at bit i * Bits.
namespace gpucast {

GPUCAST_INLINE u64 address(const void* pointer) { return reinterpret_cast<u64>(pointer); }

// The widest access of one instruction for which every multiple of `Bytes` is aligned.
template <u32 Bytes>
struct Piece {
    enum : u32 { lowest_bit = Bytes & (~Bytes + 1), bytes = lowest_bit < 16 ? lowest_bit : 16 };
};

// The fewest elements that fill whole bytes together.
template <u32 Bits>
struct Unit {
    enum : u32 { lowest_bit = Bits & (~Bits + 1), elements = lowest_bit < 8 ? 8 / lowest_bit : 1, bytes = elements * Bits / 8 };
};

struct Head {
    u32 elements;
    // False where no element begins at an aligned address.
    bool reachable;
};

// How many elements lie between a whole byte and the next address that is a multiple of Alignment.
template <u32 Bits, u32 Alignment>
GPUCAST_INLINE Head elements_before(const u8* stream) {
    const u32 gap = u32(0 - address(stream)) & (Alignment - 1);
    const u32 even = Piece<Unit<Bits>::bytes>::bytes, odd = Unit<Bits>::bytes / even;
    // Units of `odd` bytes reach every gap; `odd` is 1 or 3, and 3 is its own inverse modulo 8.
    static_assert(odd == 1 || (odd == 3 && Alignment <= 8), "another inverse is needed");
    const u32 units = gap / even * odd & (Alignment / even - 1);
    return {units * Unit<Bits>::elements, gap % even == 0};
}

// ---- a tile of `Bytes` bytes in registers: 32-bit words, the last one filled up with zeros ----

template <u32 Bytes>
struct Tile {
    // shift_margin: bytes on either side that `load_shifted` may touch.
    // wide: the alignment that `load_wide` and `store_wide` take.
    enum : u32 {
        words = (Bytes + 3) / 4,
        piece = Piece<Bytes>::bytes,
        wide = GPUCAST_WIDE && Bytes % 32 == 0 ? 32 : piece,
        shift_margin = Bytes % 16 == 0 ? 16 : 8
    };
    u32 word[words];
};

// In global memory.
template <u32 Bytes>
GPUCAST_INLINE void load_aligned(const u8* from, Tile<Bytes>& tile) {
    if constexpr (Bytes == 1) {
        tile.word[0] = *from;
    } else if constexpr (Bytes == 2) {
        tile.word[0] = *reinterpret_cast<const u16*>(from);
    } else if constexpr (Bytes == 3) {
        tile.word[0] = u32(from[2]) << 16 | u32(from[1]) << 8 | from[0];
    } else {
        const u32 count = Tile<Bytes>::piece / 4;
        static_assert(count != 0, "a tile of more than 3 bytes has whole words");
#pragma unroll
        for (u32 i = 0; i < Bytes / 4; i += count) {
            u32* word = tile.word + i;
            if constexpr (count == 1) *word = *reinterpret_cast<const u32*>(from + 4 * i);
            if constexpr (count == 2) ptx::ld(from + 4 * i, word[0], word[1]);
            if constexpr (count == 4) ptx::ld(from + 4 * i, word[0], word[1], word[2], word[3]);
        }
    }
}

// From any byte and bit (0 to 7): whole aligned words, shifted together.
template <u32 Bytes>
GPUCAST_INLINE void load_shifted(const u8* from, u32 bit, Tile<Bytes>& tile) {
    const u32 skew = u32(address(from)) & 3;
    const u32 shift = 8 * skew + bit;
    if constexpr (Bytes % 16 == 0) {
        // In vectors, of which the first may begin up to three words early.
        const u32 early = u32(address(from)) >> 2 & 3;
        Tile<Bytes + 16> wide;
        load_aligned(from - 4 * early - skew, wide);
#pragma unroll
        for (u32 step = 2; step != 0; step >>= 1) {
            if ((early & step) == 0) continue;
#pragma unroll
            for (u32 i = 0; i + step < Tile<Bytes + 16>::words; ++i) wide.word[i] = wide.word[i + step];
        }
#pragma unroll
        for (u32 i = 0; i < Tile<Bytes>::words; ++i) {
            tile.word[i] = u32((u64(wide.word[i + 1]) << 32 | wide.word[i]) >> shift);
        }
    } else {
        const u32* words = reinterpret_cast<const u32*>(from - skew);
        u32 low = words[0];
#pragma unroll
        for (u32 i = 0; i < Tile<Bytes>::words; ++i) {
            const u32 high = words[i + 1];
            tile.word[i] = u32((u64(high) << 32 | low) >> shift);
            low = high;
        }
    }
}

template <u32 Bytes>
GPUCAST_INLINE void store_aligned(u8* to, const Tile<Bytes>& tile) {
    if constexpr (Bytes == 1) {
        *to = u8(tile.word[0]);
    } else if constexpr (Bytes == 2) {
        *reinterpret_cast<u16*>(to) = u16(tile.word[0]);
    } else if constexpr (Bytes == 3) {
#pragma unroll
        for (u32 i = 0; i < 3; ++i) to[i] = u8(tile.word[0] >> (8 * i));
    } else {
        const u32 count = Tile<Bytes>::piece / 4;
        static_assert(count != 0, "a tile of more than 3 bytes has whole words");
#pragma unroll
        for (u32 i = 0; i < Bytes / 4; i += count) {
            const u32* word = tile.word + i;
            if constexpr (count == 1) *reinterpret_cast<u32*>(to + 4 * i) = *word;
            if constexpr (count == 2) ptx::st(to + 4 * i, word[0], word[1]);
            if constexpr (count == 4) ptx::st(to + 4 * i, word[0], word[1], word[2], word[3]);
        }
    }
}

// Words in shared memory, at a multiple of the largest vector that divides them. Plain accesses, because the inline PTX of
// the functions around is for global memory alone, and the compiler sees by itself which memory it is.
template <u32 Count>
struct alignas(Count % 4 == 0 ? 16 : Count % 2 == 0 ? 8 : 4) WordVector {
    enum : u32 { words = Count % 4 == 0 ? 4 : Count % 2 == 0 ? 2 : 1 };
    u32 word[words];
};
template <u32 Count>
GPUCAST_INLINE void load_words(const u8* from, u32 (&words)[Count]) {
#pragma unroll
    for (u32 i = 0; i < Count; i += WordVector<Count>::words) {
        const WordVector<Count> vector = *reinterpret_cast<const WordVector<Count>*>(from + 4 * i);
#pragma unroll
        for (u32 j = 0; j < u32(WordVector<Count>::words); ++j) words[i + j] = vector.word[j];
    }
}
template <u32 Count>
GPUCAST_INLINE void store_words(u8* to, const u32 (&words)[Count]) {
#pragma unroll
    for (u32 i = 0; i < Count; i += WordVector<Count>::words) {
        WordVector<Count> vector;
#pragma unroll
        for (u32 j = 0; j < u32(WordVector<Count>::words); ++j) vector.word[j] = words[i + j];
        *reinterpret_cast<WordVector<Count>*>(to + 4 * i) = vector;
    }
}

// Tiles of global memory in the widest accesses of all, for tiles of which two are a sector apart or more.
template <u32 Bytes>
GPUCAST_INLINE void load_wide(const u8* from, Tile<Bytes>& tile) {
    if constexpr (u32(Tile<Bytes>::wide) == 32) {
#pragma unroll
        for (u32 i = 0; i < Bytes / 4; i += 8) ptx::ld_wide(from + 4 * i, tile.word + i);
    } else {
        load_aligned(from, tile);
    }
}
template <u32 Bytes>
GPUCAST_INLINE void store_wide(u8* to, const Tile<Bytes>& tile) {
    if constexpr (u32(Tile<Bytes>::wide) == 32) {
#pragma unroll
        for (u32 i = 0; i < Bytes / 4; i += 8) ptx::st_wide(to + 4 * i, tile.word + i);
    } else {
        store_aligned(to, tile);
    }
}

// A tile that begins at `bit` of the byte `from`, of which only the bytes with the bits from `first` to `last`, counted
// from `from`, are read; the others may lie outside of the array.
template <u32 Bytes>
GPUCAST_INLINE void load_part(const u8* from, u32 bit, u32 first, u32 last, Tile<Bytes>& tile) {
    const u32 words = Tile<Bytes>::words, begin = first / 8, count = (last + 7) / 8 - begin;
    u32 low = ptx::ld_bytes(from, 0, begin, count);
#pragma unroll
    for (u32 i = 0; i < words; ++i) {
        const u32 high = ptx::ld_bytes(from + 4 * i + 4, 4 * i + 4, begin, count);
        tile.word[i] = u32((u64(high) << 32 | low) >> bit);
        low = high;
    }
}

// Zeros in place of the bits before `first` and from `last` on.
template <u32 Bytes>
GPUCAST_INLINE void keep_bits(Tile<Bytes>& tile, u32 first, u32 last) {
#pragma unroll
    for (u32 i = 0; i < Tile<Bytes>::words; ++i) {
        const u32 from = ptx::shl(~0u, first < 32 * i ? 0 : first - 32 * i);
        tile.word[i] &= from & ~ptx::shl(~0u, last < 32 * i ? 0 : last - 32 * i);
    }
}

// Stores the bits from `first`, a whole byte, to `last`; those above `last` in its byte become zero.
template <u32 Bytes>
GPUCAST_INLINE void store_part(u8* to, u32 first, u32 last, const Tile<Bytes>& tile) {
    const u32 begin = first / 8, count = (last + 7) / 8 - begin;
#pragma unroll
    for (u32 i = 0; i < Tile<Bytes>::words; ++i) {
        // Zeros from `last` on.
        const u32 kept = ptx::shl(~0u, last < 32 * i ? 0 : last - 32 * i);
        ptx::st_bytes(to + 4 * i, tile.word[i] & ~kept, 4 * i, begin, count);
    }
}

// Element i of a tile. The compiler must know i, because registers cannot be indexed at run time.
template <u32 Bits, typename Word, u32 Bytes>
GPUCAST_INLINE Word get(const Tile<Bytes>& tile, u32 i) {
    const u32 word = i * Bits / 32, shift = i * Bits % 32;
    if constexpr (Bits == 64) {
        return u64(tile.word[word + 1]) << 32 | tile.word[word];
    } else {
        u32 code = tile.word[word] >> shift;
        if constexpr (32 % Bits != 0) {
            if (shift + Bits > 32) code = u32((u64(tile.word[word + 1]) << 32 | tile.word[word]) >> shift);
        }
        return code & (~0u >> (32 - Bits));
    }
}

// Writes element i of a tile, which is still zero there; the bits of `code` above the element's are zero.
template <u32 Bits, typename Word, u32 Bytes>
GPUCAST_INLINE void put(Tile<Bytes>& tile, u32 i, Word code) {
    const u32 word = i * Bits / 32, shift = i * Bits % 32;
    tile.word[word] |= u32(code) << shift;
    if constexpr (Bits == 64) {
        tile.word[word + 1] = u32(code >> 32);
    } else if constexpr (32 % Bits != 0) {
        if (shift + Bits > 32) tile.word[word + 1] |= u32(code) >> (32 - shift);
    }
}

// The same of 16 bits or fewer, where the GPU multiplies and adds while it has little else to multiply.
template <u32 Bits, u32 Bytes>
GPUCAST_INLINE void put_by_product(Tile<Bytes>& tile, u32 i, u32 code) {
    const u32 word = i * Bits / 32, shift = i * Bits % 32;
    if (GPUCAST_ARCH >= 1000 && shift != 0 && shift + Bits <= 32) tile.word[word] = ptx::mad(code, 1u << shift, tile.word[word]);
    else put<Bits>(tile, i, code);
}

// How many elements `put_lanes` puts into a tile together: the lanes of one word, which are bytes for types of 8 bits
// or fewer, halves for those of 16.
template <u32 Bits, u32 Elements>
struct Group {
    enum : u32 { most = Bits <= 8 ? 4 : Bits <= 16 ? 2 : 1, elements = Elements < most ? Elements : most };
};

// Writes N elements from element i on of a tile, which is still zero there. The bits of a lane above its element's are
// zero.
template <u32 Bits, u32 N, u32 Bytes>
GPUCAST_INLINE void put_lanes(Tile<Bytes>& tile, u32 i, u32 lanes) {
    u32& word = tile.word[i * Bits / 32];
    if constexpr (Bits == 4) {
        // One multiplication brings two neighbours together, in bytes 1 and 3.
        const u32 pairs = lanes * 0x110;
        if constexpr (N == 4 && Bytes >= 4) word = i % 8 == 0 ? ptx::prmt(pairs, 0, 0x4431) : ptx::prmt(word, pairs, 0x7510);
        else put<N * Bits>(tile, i / N, N == 4 ? ptx::prmt(pairs, 0, 0x4431) : pairs >> 8 & 0xff);
    } else if constexpr (Bits == 2) {
        static_assert(N == 4, "whole bytes");
        // One multiplication brings the four together in the top byte.
        const u32 byte = lanes * 0x01041040;
        word = i % 16 == 0 ? byte >> 24 : ptx::prmt(word, byte, i % 16 == 4 ? 0x3270 : i % 16 == 8 ? 0x3710 : 0x7210);
    } else if constexpr (Bits == 6) {
        static_assert(N == 4, "whole bytes");
        // Pairs and then all four are brought together by shifts to the left, which multiplications do; masks clear what
        // is shifted along. They end in the upper three bytes.
        u32 four;
        if constexpr (GPUCAST_ARCH >= 1000) {
            // What is shifted is added as often as it is missing.
            const u32 pairs = ptx::mad(lanes & 0x00ff00ff, 3, lanes);
            four = ptx::mad(pairs & 0xffff, 60, pairs << 2);
        } else {
            const u32 pairs = (lanes << 2 & 0x00ff00ff) | (lanes & 0xff00ff00);
            four = ((pairs << 4 & 0x3ffff) | (pairs & 0xfffc0000)) << 2;
        }
        // Sixteen elements are three words. A group that ends in the next word is put there in full; the next group
        // replaces the bytes that do not belong there. Where there is none, they are shifted out.
        const bool last = i + N == Bytes * 8 / Bits;
        if (i % 16 == 0) {
            word = last ? four >> 8 : four;
        } else {
            word = ptx::prmt(word, four, i % 16 == 4 ? 0x5321 : i % 16 == 8 ? 0x6532 : 0x7653);
            if (i % 16 != 12) tile.word[i * Bits / 32 + 1] = last ? four >> (i % 16 == 4 ? 16 : 24) : four;
        }
    } else {
        put<N * Bits>(tile, i / N, lanes);
    }
}

// Elements i to i + 3 of a tile, of 8 bits or fewer, as bytes.
template <u32 Bits, u32 Bytes>
GPUCAST_INLINE u32 four_codes(const Tile<Bytes>& tile, u32 i) {
    if constexpr (Bits == 8) {
        return tile.word[i / 4];
    } else if constexpr (Bits == 4) {
        const u32 word = tile.word[i / 8];
        return ptx::prmt(word & 0x0f0f0f0f, word >> 4 & 0x0f0f0f0f, i % 8 ? 0x7362 : 0x5140);
    } else {
        const u32 first = i * Bits / 32, shift = i * Bits % 32;
        u32 some = tile.word[first] >> shift;
        if (shift + 4 * Bits > 32) some |= tile.word[first + 1] << (32 - shift);
        if constexpr (Bits == 2) some = (some & 0xf) | (some & 0xf0) << 12;
        else some = (some & 0xfff) | (some & 0xfff000) << 4;
        const u32 low = repeated<16>((1u << Bits) - 1);
        return (some & low) | (some & low << Bits) << (8 - Bits);
    }
}

// ---- single elements, at any address ----

// The element that begins at a bit of the stream.
template <u32 Bits, typename Word>
GPUCAST_INLINE Word read_element(const u8* stream, u64 bit) {
    const u8* from = stream + (bit >> 3);
    if constexpr (Bits < 8) {
        const u32 shift = u32(bit) & 7;
        u32 code = *from;
        // The next byte is read only for an element that goes on there: it may lie outside of the array.
        if (shift + Bits > 8) code |= u32(from[1]) << 8;
        return code >> shift & ((1u << Bits) - 1);
    } else {
        Word code = 0;
#pragma unroll
        for (u32 i = 0; i < Bits / 8; ++i) code |= Word(from[i]) << (8 * i);
        return code;
    }
}

// A whole-byte element of a strided array: one access where the address allows it, else byte by byte.
template <u32 Bits, typename Word>
GPUCAST_INLINE Word load_element(const u8* from) {
    if ((address(from) & (Bits / 8 - 1)) != 0) return read_element<Bits, Word>(from, 0);
    if constexpr (Bits == 8) return *from;
    if constexpr (Bits == 16) return *reinterpret_cast<const u16*>(from);
    if constexpr (Bits == 32) return *reinterpret_cast<const u32*>(from);
    if constexpr (Bits == 64) return *reinterpret_cast<const u64*>(from);
}

template <u32 Bits, typename Word>
GPUCAST_INLINE void store_element(u8* to, Word code) {
    if ((address(to) & (Bits / 8 - 1)) != 0) {
#pragma unroll
        for (u32 i = 0; i < Bits / 8; ++i) to[i] = u8(code >> (8 * i));
        return;
    }
    if constexpr (Bits == 8) *to = u8(code);
    if constexpr (Bits == 16) *reinterpret_cast<u16*>(to) = u16(code);
    if constexpr (Bits == 32) *reinterpret_cast<u32*>(to) = u32(code);
    if constexpr (Bits == 64) *reinterpret_cast<u64*>(to) = code;
}

// Writes elements one after the other, from a whole byte on.
template <u32 Bits, typename Word>
struct Writer {
    u8* to;
    Word held;
    u32 held_bits;

    // The bits of `code` above the element's are zero.
    GPUCAST_INLINE void put(Word code) {
        held |= code << held_bits;
        held_bits += Bits;
#pragma unroll
        for (u32 i = 0; i < (Bits + 7) / 8; ++i) {
            if (held_bits < 8) break;
            *to++ = u8(held);
            held >>= 8;
            held_bits -= 8;
        }
    }

    // The last byte, its unused bits zero.
    GPUCAST_INLINE void finish() {
        if (held_bits != 0) *to = u8(held);
    }
};

}  // namespace gpucast
