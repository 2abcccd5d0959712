// SPDX-License-Identifier: Apache-2.0
// Floats of 6 bits to types of 6 bits or fewer by logic, sixteen at a time: each bit of a result is a function of the
// bits of its code.
//
// The functions are computed by the generic rule while the kernel is compiled, as in table.cuh, and put together of
// `lop3`, which is any function of three bits. A plane is a word with one bit of each code, in its odd bits: that of
// code i in pair 3 * i modulo 16, because there the words of a tile have pairs of bits of the codes.
namespace gpucast {

// ---- functions: bit i of a table is the value for code i ----

GPUCAST_CONSTANT u64 codes_with(u32 bit) {
    u64 table = 0;
    for (u32 code = 0; code < 64; ++code) table |= u64(code >> bit & 1) << code;
    return table;
}

// The function where the value of a bit is known.
GPUCAST_CONSTANT u64 restricted(u64 table, u32 bit, bool value) {
    const u64 half = table & (value ? codes_with(bit) : ~codes_with(bit));
    return half | (value ? half >> (1u << bit) : half << (1u << bit));
}

// The bits that a function depends on, in the order in which it is taken apart; the last one again where there are
// fewer.
struct Inputs {
    u32 count, bit[6];
};
GPUCAST_CONSTANT Inputs inputs(u64 table) {
    Inputs found = {};
    const u32 order[6] = {3, 4, 5, 2, 1, 0};
    for (u32 bit : order) {
        if (restricted(table, bit, false) == restricted(table, bit, true)) continue;
        for (u32 i = found.count++; i < 6; ++i) found.bit[i] = bit;
    }
    return found;
}

// A function of three bits as `lop3` has it.
GPUCAST_CONSTANT u32 of_three(u64 table, const Inputs& from) {
    u32 found = 0;
    for (u32 i = 0; i < 8; ++i) {
        const u32 code = (i >> 2 & 1) << from.bit[0] | (i >> 1 & 1) << from.bit[1] | (i & 1) << from.bit[2];
        found |= u32(table >> code & 1) << i;
    }
    return found;
}

// The plane of a function's values.
template <u64 Function>
GPUCAST_INLINE u32 values(const u32 (&plane)[6]) {
    constexpr Inputs from = inputs(Function);
    const u32 first = plane[from.bit[0]];
    if constexpr (from.count == 0) {
        return Function == 0 ? 0 : ~0u;
    } else if constexpr (Function == codes_with(from.bit[0])) {
        return first;
    } else if constexpr (from.count <= 3) {
        return ptx::lop3<of_three(Function, from)>(first, plane[from.bit[1]], plane[from.bit[2]]);
    } else {
        constexpr u64 with = restricted(Function, from.bit[0], true);
        constexpr u64 without = restricted(Function, from.bit[0], false);
        return ptx::lop3<0xca>(first, values<with>(plane), values<without>(plane));
    }
}

// ---- sixteen codes ----

template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_planes() {
    if constexpr (!Src::is_float || is_same<Src, Dst>) return false;
    else if constexpr (GPUCAST_ARCH < 1000 || Src::bits != 6) return false;
    else return (Dst::is_int && Dst::bits <= 4) || (Dst::is_float && Dst::bits <= 6);
}

// Whether the result of a negative number is that of its magnitude, negated.
template <typename Dst, typename Rule>
GPUCAST_CONSTANT bool is_negated(Rule) {
    return Dst::is_int && Rule::overflow() == Overflow::wrap;
}

// A bit of the result as a function of the code, or of its magnitude.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT u64 result_bit(u32 bit, Rule rule) {
    u64 table = 0;
    for (u32 code = 0; code < 64; ++code) {
        const u32 sign = is_negated<Dst>(rule) ? u32(Src::sign_code) : 0;
        table |= u64(exact_code<Src, Dst>(code & ~sign, rule) >> bit & 1) << code;
    }
    return table;
}

// Bits of `b` where the mask has ones, of `a` elsewhere.
template <u32 Mask>
GPUCAST_INLINE u32 chosen(u32 a, u32 b) {
    return ptx::lop3<0xd8>(a, b, Mask);
}

template <u32 Left>
GPUCAST_INLINE u32 rotated(u32 a) {
    return a << Left | a >> (32 - Left);
}

// Of three words the bits in three kinds of places, which take turns.
template <u32 Middle, u32 High>
GPUCAST_INLINE u32 turned(u32 low, u32 middle, u32 high) {
    return chosen<High>(chosen<Middle>(low, middle), high);
}

// The planes of a result's bits.
template <typename Src, typename Dst, typename Rule, u32 Bit = 0>
GPUCAST_INLINE void result_planes(const u32 (&plane)[6], u32 (&result)[6]) {
    if constexpr (Bit < u32(Dst::bits)) {
        result[Bit] = values<result_bit<Src, Dst>(Bit, Rule())>(plane);
        result_planes<Src, Dst, Rule, Bit + 1>(plane, result);
    }
}

// The codes in three words to as many words as the results fill.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_planes(const u32* in, u32* out, Rule rule) {
    // Where the first word has the middle and the highest pairs of bits of its codes.
    constexpr u32 middle = 0x0c30c30c, high = 0x30c30c30, odd = repeated<8>(0xaa);
    u32 plane[6], bit[6] = {};
    plane[1] = turned<middle, high>(in[0], in[2], in[1]);
    plane[3] = rotated<30>(turned<middle, high>(in[1], in[0], in[2]));
    plane[5] = rotated<28>(turned<middle, high>(in[2], in[1], in[0]));
#pragma unroll
    for (u32 i = 0; i < 6; i += 2) plane[i] = plane[i + 1] << 1;
    result_planes<Src, Dst, Rule>(plane, bit);
    if constexpr (is_negated<Dst>(rule)) {
        // Of a negative number all bits above the lowest one are inverted.
        u32 inverted = 0;
#pragma unroll
        for (u32 i = 0; i < Dst::bits; ++i) {
            const u32 more = bit[i] & plane[5];
            bit[i] ^= inverted;
            inverted |= more;
        }
    }
    if constexpr (Dst::bits == 6) {
        u32 pairs[3];
#pragma unroll
        for (u32 i = 0; i < 3; ++i) pairs[i] = chosen<odd>(bit[2 * i] >> 1, bit[2 * i + 1]);
        pairs[1] = rotated<2>(pairs[1]);
        pairs[2] = rotated<4>(pairs[2]);
#pragma unroll
        for (u32 i = 0; i < 3; ++i) out[i] = turned<middle, high>(pairs[i], pairs[(i + 1) % 3], pairs[(i + 2) % 3]);
        return;
    }
    // Backwards pair i is of code 5 * i + 5 modulo 16, and each next byte of the next four codes.
    const u32 low = chosen<odd>(ptx::brev(bit[0]), ptx::brev(bit[1]) << 1);
    if constexpr (Dst::bits == 2) {
        // Of code 5 * i; the pairs of a byte go to the next bytes, by one and by two.
        const u32 pairs = rotated<2>(low), mixed = chosen<repeated<8>(0xcc)>(pairs, ptx::prmt(pairs, 0, 0x2103));
        out[0] = chosen<repeated<8>(0xf0)>(mixed, ptx::prmt(mixed, 0, 0x1032));
    } else if constexpr (Dst::bits == 4) {
        const u32 up = chosen<odd>(ptx::brev(bit[2]), ptx::brev(bit[3]) << 1);
        const u32 of_odd = chosen<repeated<8>(0xcc)>(low, up << 2), of_even = chosen<repeated<8>(0xcc)>(low >> 2, up);
        // Bytes of results 2 * i and 2 * i + 1, for even i and for odd i.
        const u32 even = chosen<repeated<8>(0xf0)>(of_even >> 4, of_odd << 4);
        const u32 uneven = chosen<repeated<8>(0xf0)>(of_even, ptx::prmt(of_odd, 0, 0x2103));
        out[0] = ptx::prmt(even, uneven, 0x7063);
        out[1] = ptx::prmt(even, uneven, 0x5241);
    }
}

}  // namespace gpucast
