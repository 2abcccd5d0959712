// SPDX-License-Identifier: Apache-2.0
// Exact numbers, and how the code of every source type is decoded to one.
//
// Everything here works on integers, so that no compiler flag (-ftz, fast math) can change a result. A dtype is a
// struct of constants that gpucast/kernel/cast_kernel.py generates, such as FLOAT16; its `family` is one of the tags
// below. `Src`, `Dst` and `DType` are such structs everywhere.
#define GPUCAST_INLINE __device__ __forceinline__
// Also called while the kernel is compiled: for the tables of table.cuh and in conditions.
#define GPUCAST_CONSTANT constexpr __device__ __forceinline__

// 800 for sm_80. The host build chooses one, to test the fast paths of several.
#ifndef GPUCAST_ARCH
#define GPUCAST_ARCH __CUDA_ARCH__
#endif
// Whether there are conversions to floats of 8 bits. sm_89 has them, but the compiler of CUDA 12.0 does not accept them
// there.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ == 0
#define GPUCAST_FLOAT8 (GPUCAST_ARCH >= 900)
#else
#define GPUCAST_FLOAT8 (GPUCAST_ARCH >= 890)
#endif
// Whether there are conversions of floats of 4 and 6 bits and of FLOAT8E8M0. The variants `a` and `f` of sm_100 and
// later have them.
#if defined(GPUCAST_HOST)
#define GPUCAST_SPECIFIC (GPUCAST_ARCH >= 1000)
#elif defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__) || defined(__CUDA_ARCH_FEAT_SM100_ALL) \
    || defined(__CUDA_ARCH_FEAT_SM101_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define GPUCAST_SPECIFIC (GPUCAST_ARCH >= 1000)
#else
#define GPUCAST_SPECIFIC 0
#endif

// Whether these conversions also go from and to pairs of FLOAT16 and BFLOAT16, which the compiler knows from CUDA 13.2 on
// (PTX 9.2).
#if defined(GPUCAST_HOST) \
    || (defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1302)
#define GPUCAST_PAIRS GPUCAST_SPECIFIC
#else
#define GPUCAST_PAIRS 0
#endif

// Whether there are accesses of 32 bytes, which the compiler knows from CUDA 12.9 on.
#if defined(GPUCAST_HOST) || !defined(__CUDACC_VER_MAJOR__) || __CUDACC_VER_MAJOR__ > 12 \
    || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 9)
#define GPUCAST_WIDE (GPUCAST_ARCH >= 1000)
#else
#define GPUCAST_WIDE 0
#endif

namespace gpucast {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Tags for overloads: `decode` is chosen by the source's family, `encode` and `convert` by the destination's.
struct BoolFamily {};
struct IntFamily {};
struct FloatFamily {};
struct E8M0Family {};

// The options of a cast as one type, as gpucast/core/rule.py resolves them. A function takes any such type as its
// parameter `Rule` and reads the options that matter to it. They are functions, because constants of class scope would
// stay in the compiled module as variables.
enum class Overflow { wrap, saturate, infinity, nan };
// By the names of gpucast/core/rounding.py, which are those of IEEE 754.
enum class Rounding { ties_to_even, ties_to_away, toward_zero, toward_positive, toward_negative, to_odd, stochastic };
enum class RoundMode { up, down, nearest };
template <Overflow on_overflow, bool infinity_becomes_nan, Rounding of_fractions, RoundMode of_powers>
struct CastRule {
    // What becomes of a number beyond the destination's range.
    static GPUCAST_CONSTANT Overflow overflow() { return on_overflow; }
    // Whether an infinity becomes NaN, although other numbers out of range become something else.
    static GPUCAST_CONSTANT bool infinity_is_nan() { return infinity_becomes_nan; }
    // How a number is rounded to an integer or a float.
    static GPUCAST_CONSTANT Rounding rounding() { return of_fractions; }
    // Which power of two FLOAT8E8M0 takes.
    static GPUCAST_CONSTANT RoundMode round_mode() { return of_powers; }
};

// The integer that holds the codes and significands of a pair: 64 bits only where either type is that wide, because the
// GPU computes with 32 bits.
template <bool Wide>
struct WordOf {
    typedef u32 type;
};
template <>
struct WordOf<true> {
    typedef u64 type;
};
template <typename Word>
struct Width {
    enum : int { bits = 8 * int(sizeof(Word)) };
};

enum class Kind { finite, infinite, nan };

// The number (-1)^negative * significand * 2^(exponent - (bits of Word - 1)).
template <typename Word>
struct Number {
    Kind kind;
    bool negative;
    // Its top bit is set, unless the number is zero.
    Word significand;
    // The top bit is worth 2^exponent; for zero this is `exponent_of_zero`.
    int exponent;
};

// Below the exponent of every number, so that code which compares exponents needs no case for zero.
enum : int { exponent_of_zero = -0x10000 };

template <typename Word>
GPUCAST_CONSTANT int leading_zeros(Word word) {
    if (!__builtin_is_constant_evaluated()) {
        if constexpr (sizeof(Word) == 4) return __clz(int(word));
        if constexpr (sizeof(Word) == 8) return __clzll(i64(word));
    }
    int zeros = 0;
    for (Word bit = Word(1) << (Width<Word>::bits - 1); bit != 0 && (word & bit) == 0; bit >>= 1) ++zeros;
    return zeros;
}

// The finite number whose `significand` has a top bit, set or not, that is worth 2^exponent.
template <typename Word>
GPUCAST_CONSTANT Number<Word> normalised(bool negative, Word significand, int exponent) {
    const int zeros = leading_zeros(significand | Word(1));
    return {Kind::finite, negative, significand << zeros, significand == 0 ? exponent_of_zero : exponent - zeros};
}

// Whether only the rule itself rounds as the mode says. Fast paths to floats round to nearest even, or at random; those to
// integers as `without_ties` does (to_int.cuh).
template <typename Dst, typename Rule>
GPUCAST_CONSTANT bool rounds_by_rule() {
    constexpr Rounding mode = Rule::rounding();
    if constexpr (Dst::is_int) return mode != Rounding::toward_zero && mode != Rounding::ties_to_even && mode != Rounding::ties_to_away;
    else return Dst::is_float && mode != Rounding::ties_to_even && mode != Rounding::stochastic;
}

// Whether a mode asks for a neighbour other than the nearest one: then there is none beyond the largest number, but for the
// direction away from zero.
GPUCAST_CONSTANT bool is_directed(Rounding mode) {
    return mode != Rounding::ties_to_even && mode != Rounding::ties_to_away && mode != Rounding::stochastic;
}

// significand / 2^drop to the nearest integer, ties to even; drop is 1 or more.
template <typename Word>
GPUCAST_CONSTANT Word round_nearest_even(Word significand, int drop) {
    const int bits = Width<Word>::bits;
    // Beyond `bits` the result is zero; drop is limited because shifts by more than the width are undefined.
    if (drop > bits) significand = 0;
    drop = drop > bits ? bits : drop;
    const Word kept = significand >> 1 >> (drop - 1);
    const Word rest = significand << (bits - drop);
    // An odd number is rounded up from the tie on, an even one only above it.
    return kept + Word((rest | (kept & 1)) > Word(1) << (bits - 1));
}

// significand / 2^drop to an integer in a mode that tells neighbours apart by no random number; drop is 1 or more, and the
// significand has its top bit set or is zero.
template <Rounding mode, typename Word>
GPUCAST_CONSTANT Word rounded(Word significand, int drop, bool negative) {
    const int bits = Width<Word>::bits;
    [[maybe_unused]] const Word kept = drop > bits ? 0 : significand >> 1 >> (drop - 1);
    [[maybe_unused]] const bool inexact = drop > bits ? significand != 0 : Word(significand << (bits - drop)) != 0;
    // The bit behind the last one that is kept.
    [[maybe_unused]] const Word half = drop > bits ? 0 : significand >> (drop - 1) & 1;
    if constexpr (mode == Rounding::ties_to_even) {
        return round_nearest_even(significand, drop);
    } else if constexpr (mode == Rounding::ties_to_away) {
        return kept + half;
    } else if constexpr (mode == Rounding::toward_positive) {
        return kept + Word(inexact && !negative);
    } else if constexpr (mode == Rounding::toward_negative) {
        return kept + Word(inexact && negative);
    } else if constexpr (mode == Rounding::to_odd) {
        return kept | Word(inexact);
    } else {
        static_assert(mode == Rounding::toward_zero, "a mode without a rule");
        return kept;
    }
}

template <typename DType, typename Word>
GPUCAST_CONSTANT Number<Word> decode(Word code, BoolFamily) {
    return normalised(false, Word((code & Word(DType::mask)) != 0), Width<Word>::bits - 1);
}

template <typename DType, typename Word>
GPUCAST_CONSTANT Number<Word> decode(Word code, IntFamily) {
    const bool negative = (code & Word(DType::sign_code)) != 0;
    const Word magnitude = (negative ? 0 - code : code) & Word(DType::mask);
    return normalised(negative, magnitude, Width<Word>::bits - 1);
}

template <typename DType, typename Word>
GPUCAST_CONSTANT Number<Word> decode(Word code, FloatFamily) {
    const Word magnitude = code & Word(DType::mask ^ DType::sign_code);
    const bool negative = (code & Word(DType::sign_code)) != 0;
    const Word hidden = Word(1) << DType::mantissa_bits;
    const Word field = magnitude >> DType::mantissa_bits;
    const Word fraction = magnitude & (hidden - 1);
    // Field 0 holds the subnormal numbers: the exponent of field 1, and no hidden bit.
    const Word significand = field != 0 ? fraction | hidden : fraction;
    const int exponent = (field != 0 ? int(field) : 1) - DType::bias;
    Number<Word> x = normalised(negative, Word(significand << (Width<Word>::bits - 1 - DType::mantissa_bits)), exponent);
    if constexpr (DType::has_inf) {
        if (magnitude == Word(DType::inf_code)) x.kind = Kind::infinite;
        if (magnitude > Word(DType::inf_code)) x.kind = Kind::nan;
    } else if constexpr (DType::nan_is_signed) {
        if (magnitude == Word(DType::nan_code)) x.kind = Kind::nan;
    } else if constexpr (DType::has_nan) {
        if ((code & Word(DType::mask)) == Word(DType::nan_code)) {
            x.kind = Kind::nan;
            // In these types the sign bit alone distinguishes NaN from zero; it is not a sign.
            x.negative = false;
        }
    }
    return x;
}

template <typename DType, typename Word>
GPUCAST_CONSTANT Number<Word> decode(Word code, E8M0Family) {
    const Word field = code & Word(DType::mask);
    const Kind kind = field == Word(DType::nan_code) ? Kind::nan : Kind::finite;
    return {kind, false, Word(1) << (Width<Word>::bits - 1), int(field) - DType::bias};
}

}  // namespace gpucast
