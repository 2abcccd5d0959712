// SPDX-License-Identifier: Apache-2.0
// Numbers of every type as a float, for shortcuts to the types that a float holds with two bits to spare.
//
// Types of up to 24 significant bits are exact. The wider ones are rounded to odd: toward zero, and the last bit set
// where anything was lost. Rounding such a float once more gives what rounding the number itself gives.
namespace gpucast {

// Whether `as_float32` knows the source. Floats of 8 bits or fewer are looked up in tables instead.
template <typename Row>
GPUCAST_CONSTANT bool has_float32() {
    if constexpr (!Row::is_float) return !Row::is_e8m0;
    else return Row::bits >= 32 || (Row::bits == 16 && (Row::mantissa_bits == 10 || Row::mantissa_bits == 7));
}

// The value of an integer or boolean: int, u32, i64 or u64.
template <typename Row>
GPUCAST_INLINE auto integer(u32 code) {
    if constexpr (Row::is_bool) {
        return u32(code != 0);
    } else if constexpr (Row::sign_code == 0) {
        return Row::bits == 32 ? code : code & u32(Row::mask);
    } else if constexpr (Row::bits == 32) {
        return int(code);
    } else {
        return int(code << (32 - Row::bits)) >> (32 - Row::bits);
    }
}
template <typename Row>
GPUCAST_INLINE auto integer(u64 code) {
    if constexpr (Row::bits < 64) {
        return integer<Row>(u32(code));
    } else if constexpr (Row::sign_code == 0) {
        return code;
    } else {
        return i64(code);
    }
}

template <typename Row, typename Word>
GPUCAST_INLINE float as_float32(Word code) {
    if constexpr (!Row::is_float && Row::bits <= 16) {
        return ptx::cvt_rn_f32(integer<Row>(code));
    } else if constexpr (!Row::is_float) {
        // The type has 32 or more bits, of which a float keeps the upper 24: what it lost lies below them.
        const bool negative = Row::sign_code != 0 && (code & Word(Row::sign_code)) != 0;
        const Word magnitude = negative ? 0 - code : code;
        const int zeros = leading_zeros(magnitude | 1);
        const Word lost = magnitude << zeros << 24;
        return ptx::as_float(ptx::bits(ptx::cvt_rz_f32(integer<Row>(code))) | u32(lost != 0));
    } else if constexpr (Row::bits == 16 && Row::mantissa_bits == 10) {
        return ptx::cvt_f32_f16(u32(code));
    } else if constexpr (Row::bits == 16) {
        return ptx::as_float(u32(code) << 16);
    } else if constexpr (Row::bits == 32) {
        return ptx::as_float(u32(code));
    } else {
        const double value = ptx::as_double(code);
        const float cut = ptx::cvt_rz_f32(value);
        // NaN differs from itself, and stays NaN.
        return ptx::as_float(ptx::bits(cut) | u32(ptx::cvt_f64(cut) != value));
    }
}

// The sign of a signed type's code, as the top bit.
template <typename Row, typename Word>
GPUCAST_INLINE u32 sign_of(Word code) {
    if constexpr (Row::bits == 64) {
        return u32(code >> 32) & 0x80000000;
    } else {
        return u32(code) << (32 - Row::bits) & 0x80000000;
    }
}

// The value of a code as the bits of a float; also of the codes beyond the last finite one, as if they went on.
template <typename Row>
GPUCAST_CONSTANT u32 float32_bits(u32 code) {
    const u32 field = code >> Row::mantissa_bits, fraction = code & ((1u << Row::mantissa_bits) - 1);
    return (field + 127 - Row::bias) << 23 | fraction << (23 - Row::mantissa_bits);
}

// ---- lanes: the bytes or halves of a word ----

// The low byte (Lane 8) or half (Lane 16) of each word, the first one lowest. Lanes that no word fills are zero.
template <u32 Lane, u32 N>
GPUCAST_INLINE u32 low_lanes(const u32 (&part)[N]) {
    static_assert(N * Lane <= 32, "lanes of one word");
    if constexpr (Lane == 16) return N == 1 ? part[0] & 0xffff : ptx::prmt(part[0], part[N - 1], 0x5410);
    if constexpr (N == 1) return part[0] & 0xff;
    if constexpr (N == 2) return ptx::prmt(part[0], part[1], 0x0040) & 0xffff;
    if constexpr (N == 4) {
        return ptx::prmt(ptx::prmt(part[0], part[1], 0x0040), ptx::prmt(part[2], part[N - 1], 0x0040), 0x5410);
    }
}

// The same of the high bytes or halves.
template <u32 Lane, u32 N>
GPUCAST_INLINE u32 high_lanes(const u32 (&part)[N]) {
    static_assert(N * Lane <= 32, "lanes of one word");
    if constexpr (N == 1) return part[0] >> (32 - Lane);
    if constexpr (Lane == 16 && N == 2) return ptx::prmt(part[0], part[1], 0x7632);
    if constexpr (Lane == 8 && N == 2) return ptx::prmt(part[0], part[1], 0x0073) & 0xffff;
    if constexpr (N == 4) {
        return ptx::prmt(ptx::prmt(part[0], part[1], 0x0073), ptx::prmt(part[2], part[N - 1], 0x0073), 0x5410);
    }
}

template <u32 Lane>
GPUCAST_CONSTANT u32 repeated(u32 code) {
    return Lane == 8 ? code * 0x01010101 : code * 0x00010001;
}

}  // namespace gpucast
