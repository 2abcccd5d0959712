// SPDX-License-Identifier: Apache-2.0
// Numbers of every type as a float: the compute type of the fast paths to types with two bits less precision than a
// float.
//
// Types of up to 24 significant bits are exact. The wider ones are rounded to odd: toward zero, and the last bit set
// where anything was cut off. Rounding such a float once more gives the same as rounding the number itself (Boldo and
// Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
namespace gpucast {

// ---- types that instructions know ----

// Whether a type is FLOAT4E2M1, FLOAT8E4M3FN or FLOAT8E5M2, and whether instructions round numbers to it.
template <typename DType>
GPUCAST_CONSTANT bool is_float4() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits == 4 && DType::mantissa_bits == 1 && DType::bias == 1;
}
template <typename DType>
GPUCAST_CONSTANT bool is_e4m3() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits == 8 && DType::mantissa_bits == 3 && DType::bias == 7 && DType::has_negative_zero;
}
template <typename DType>
GPUCAST_CONSTANT bool is_e5m2() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits == 8 && DType::mantissa_bits == 2 && DType::bias == 15 && DType::has_negative_zero;
}
template <typename DType>
GPUCAST_CONSTANT bool has_conversion() {
    if constexpr (is_float4<DType>()) return GPUCAST_SPECIFIC;
    else return GPUCAST_FLOAT8 && (is_e4m3<DType>() || is_e5m2<DType>());
}

// The same for FLOAT6E2M3 and FLOAT6E3M2, which only casts use.
template <typename DType>
GPUCAST_CONSTANT bool has_float6_conversion() {
    if constexpr (!DType::is_float || DType::bits != 6) return false;
    else return GPUCAST_SPECIFIC && ((DType::mantissa_bits == 3 && DType::bias == 1) || (DType::mantissa_bits == 2 && DType::bias == 3));
}

// ---- numbers as floats ----

// Whether `as_float32` knows the source. Other floats of 8 bits or fewer are looked up in tables instead.
template <typename DType>
GPUCAST_CONSTANT bool has_float32() {
    if constexpr (!DType::is_float) return !DType::is_e8m0 || GPUCAST_SPECIFIC;
    else if constexpr (DType::bits <= 8) return has_conversion<DType>() || has_float6_conversion<DType>();
    else return DType::bits >= 32 || (DType::bits == 16 && (DType::mantissa_bits == 10 || DType::mantissa_bits == 7));
}

// The value of an integer or boolean: int, u32, i64 or u64.
template <typename DType>
GPUCAST_INLINE auto integer(u32 code) {
    if constexpr (DType::is_bool) {
        return u32(code != 0);
    } else if constexpr (DType::sign_code == 0) {
        return DType::bits == 32 ? code : code & u32(DType::mask);
    } else if constexpr (DType::bits == 32) {
        return int(code);
    } else {
        return int(code << (32 - DType::bits)) >> (32 - DType::bits);
    }
}
template <typename DType>
GPUCAST_INLINE auto integer(u64 code) {
    if constexpr (DType::bits < 64) {
        return integer<DType>(u32(code));
    } else if constexpr (DType::sign_code == 0) {
        return code;
    } else {
        return i64(code);
    }
}

template <typename DType, typename Word>
GPUCAST_INLINE float as_float32(Word code) {
    if constexpr (DType::is_e8m0) {
        u32 low, high;
        ptx::cvt_bf16x4_ue8m0(u32(code), low, high);
        return ptx::as_float(low << 16);
    } else if constexpr (!DType::is_float && DType::bits <= 16) {
        return ptx::cvt_rn_f32(integer<DType>(code));
    } else if constexpr (!DType::is_float) {
        // The type has 32 or more bits, of which a float keeps the upper 24; the others are cut off.
        if constexpr (GPUCAST_ARCH >= 1000 && DType::bits == 64 && DType::sign_code != 0) {
            // What is left is an integer of 64 bits again.
            const float cut = ptx::cvt_rz_f32(i64(code));
            return ptx::as_float(ptx::bits(cut) | u32(ptx::cvt_rzi_s64(cut) != i64(code)));
        }
        const bool negative = DType::sign_code != 0 && (code & Word(DType::sign_code)) != 0;
        const Word magnitude = negative ? 0 - code : code;
        const int zeros = leading_zeros(magnitude | 1);
        const Word cut_off = magnitude << zeros << 24;
        return ptx::as_float(ptx::bits(ptx::cvt_rz_f32(integer<DType>(code))) | u32(cut_off != 0));
    } else if constexpr (DType::bits == 4) {
        return ptx::cvt_f32_f16(ptx::cvt_f16x2_e2m1(u32(code)));
    } else if constexpr (DType::bits == 6) {
        u32 low, high;
        if constexpr (DType::mantissa_bits == 3) ptx::cvt_f16x4_e2m3(u32(code) & u32(DType::mask), low, high);
        else ptx::cvt_f16x4_e3m2(u32(code) & u32(DType::mask), low, high);
        return ptx::cvt_f32_f16(low);
    } else if constexpr (DType::bits == 8) {
        // FLOAT8E5M2 is the upper half of FLOAT16.
        return ptx::cvt_f32_f16(is_e4m3<DType>() ? ptx::cvt_f16x2_e4m3(u32(code)) : u32(code) << 8);
    } else if constexpr (DType::bits == 16 && DType::mantissa_bits == 10) {
        return ptx::cvt_f32_f16(u32(code));
    } else if constexpr (DType::bits == 16) {
        return ptx::as_float(u32(code) << 16);
    } else if constexpr (DType::bits == 32) {
        return ptx::as_float(u32(code));
    } else {
        const double value = ptx::as_double(code);
        const float cut = ptx::cvt_rz_f32(value);
        // NaN differs from itself, and stays NaN.
        return ptx::as_float(ptx::bits(cut) | u32(ptx::cvt_f64(cut) != value));
    }
}

// The sign of a code, as the top bit; floats without one have none.
template <typename DType, typename Word>
GPUCAST_INLINE u32 sign_of(Word code) {
    if constexpr (DType::is_e8m0 || (DType::is_float && DType::sign_code == 0)) {
        return 0;
    } else if constexpr (DType::bits == 64) {
        return u32(code >> 32) & 0x80000000;
    } else {
        return u32(code) << (32 - DType::bits) & 0x80000000;
    }
}

// The value of a code of a floating type as the bits of a float. A code above that of the largest number counts as if
// the finite numbers went on.
template <typename DType>
GPUCAST_CONSTANT u32 float32_bits(u32 code) {
    const u32 field = code >> DType::mantissa_bits, fraction = code & ((1u << DType::mantissa_bits) - 1);
    return (field + 127 - DType::bias) << 23 | fraction << (23 - DType::mantissa_bits);
}

// ---- lanes: the bytes or halves of a word ----

// One word of the low bytes (Lane 8) or halves (Lane 16) of N words, the first one lowest. Lanes without a word are
// zero.
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

// One word of the high bytes or halves of N words.
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
