// SPDX-License-Identifier: Apache-2.0
// Casts of one element, of which compilers make vector instructions in the loops of casts.hpp.
namespace gpucast {

// The unsigned integer that holds a code in an array.
template <u32 Bytes>
struct StoredAs;
template <>
struct StoredAs<1> {
    typedef u8 type;
};
template <>
struct StoredAs<2> {
    typedef u16 type;
};
template <>
struct StoredAs<4> {
    typedef u32 type;
};
template <>
struct StoredAs<8> {
    typedef u64 type;
};
template <typename DType>
using Stored = typename StoredAs<(DType::bits + 7) / 8>::type;

template <typename Src, typename Dst>
using WordFor = typename WordOf<(Src::bits > 32 || Dst::bits > 32)>::type;

// Whether a cast widens a float to DOUBLE.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool widens() {
    if constexpr (!Src::is_float || !Dst::is_float) return false;
    else return has_float32<Src>() && Src::bits <= 32 && Dst::bits == 64 && Rule::overflow() != Overflow::saturate;
}

// A signed integer of 16 bits or fewer, extended from its own width, of which vectors hold more.
template <typename Src>
GPUCAST_INLINE int short_integer(Stored<Src> code) {
    const Stored<Src> sign = Stored<Src>(Src::sign_code), own = Stored<Src>((code & Stored<Src>(Src::mask)) ^ sign) - sign;
    if constexpr (sizeof own == 1) return static_cast<signed char>(own);
    else return static_cast<short>(own);
}

// Without the low bits of `cut`; where one of them was set, the next one is.
template <typename Word>
GPUCAST_INLINE Word odd(Word code, Word cut) {
    return (code | ((code & cut) + cut)) & ~cut;
}

// A number as a float that BFLOAT16 and all shorter floats round as the number itself: rounded to odd, which means that
// what is cut off leaves the last bit set. In two's complement, too, the odd one of two neighbours has the last bit set.
// Of short integers nothing is cut off.
template <typename Src>
GPUCAST_INLINE float odd_float(Stored<Src> code) {
    typedef Stored<Src> Word;
    const bool is_wide = Src::bits == 64;
    if constexpr (is_same<Src, FLOAT>) {
        return ptx::as_float(code);
    } else if constexpr (Src::bits <= 16) {
        return float(short_integer<Src>(code));
    } else if constexpr (Src::is_float) {
        // 14 bits of a DOUBLE are two more than FLOAT16 has and its subnormal numbers need; and a float has them from 2^-136
        // on, below which all results are zero.
        return ptx::cvt_rn_f32(ptx::as_double(odd<Word>(code, (u64(1) << 39) - 1)));
    } else {
        // A long integer as a DOUBLE first.
        const Word exact = Word(1) << (is_wide ? 53 : 24);
        const bool is_signed = Src::sign_code != 0;
        const bool is_exact = is_signed ? code + exact <= 2 * exact : code <= exact;
        const auto whole = integer<Src>(is_exact ? code : odd<Word>(code, is_wide ? 0x7ff : 0xff));
        if constexpr (is_wide) return odd_float<DOUBLE>(ptx::bits(ptx::cvt_rn_f64(whole)));
        else return ptx::cvt_rn_f32(whole);
    }
}

// Whether the number is rounded to odd by that, and not by the rules: these count leading zeros, or take longer for
// what 64 bits hold, or for the signs of short integers.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool takes_odd_float() {
    if constexpr (Src::is_float) return Src::bits == 64 && (is_small<Dst>() || is_upper_half<Dst>() || Dst::is_e8m0) && !Rule::infinity_is_nan();
    else if constexpr (Src::bits >= 32) return is_upper_half<Dst>() || Dst::is_e8m0;
    else return Src::sign_code != 0 && Dst::is_float && Dst::bits <= 32;
}

// Whether a cast keeps the low bits of an integer part, and they fit in 32.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool wraps() {
    if constexpr (!Src::is_float || !Dst::is_int || Dst::bits > 32 || Src::bits < 16) return false;
    else return has_float32<Src>() && Rule::overflow() == Overflow::wrap;
}

// The low bits of the integer part of a number, rounded or not; those above the destination's are arbitrary. In C++ a
// number out of range has no conversion, so choices replace it first, where `low_bits` does not: they are vector
// instructions, branches are not.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 integer_part(float number) {
    const float x = without_ties<Rule>(number), limit = 0x1p31f;
    if constexpr (Src::bias < 31 || Dst::bits + Src::mantissa_bits <= 31) {
        // The low bits of all numbers from the limit on are 0.
        return Dst::bits < 32 ? ptx::low_bits(x) : u32(int(ptx::abs(x) < limit ? x : 0.0f));
    } else {
        // Without the nearest multiple of 2^32, exactly: numbers from the limit on have no fraction. Infinities leave NaN.
        // Midway between two multiples the rest may be the limit itself. To BFLOAT16 is added so little that it chooses the
        // upper multiple there, and nothing anywhere else.
        const bool is_short = Src::bits == 16;
        const float multiple = ptx::cvt_rni_f32(ptx::fma_rn(x, 0x1p-32f, is_short ? 0x1p-12f : 0.0f));
        const float rest = ptx::fma_rn(multiple, -0x1p32f, x);
        return is_short || Dst::bits < 32 ? u32(int(rest < limit ? rest : 0.0f)) : ptx::all_low_bits(rest);
    }
}
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 integer_part(double number) {
    const double x = without_ties<Rule>(number);
    // Without a multiple of 2^32, exactly, and of the same sign, so that the fraction is cut off toward zero.
    const double rest = ptx::fma_rn(ptx::cvt_rzi_f64(x * 0x1p-32), -0x1p32, x);
    return ptx::low_bits(GPUCAST_ALL_HAVE_LOW_BITS && Dst::bits <= 8 ? x : rest);
}

template <typename Src>
GPUCAST_INLINE auto number(Stored<Src> code) {
    if constexpr (Src::bits == 64) return ptx::as_double(code);
    else return as_float32<Src>(u32(code));
}

// Whether a cast is to the nearest integer of a range, and the rules' own way takes longer.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool saturates() {
    if constexpr (!Dst::is_int || Src::is_e8m0 || Rule::overflow() != Overflow::saturate) return false;
    else return !Src::is_float || (has_float32<Src>() && (Src::bits == 64 || Dst::bits != 32));
}

template <typename Number>
GPUCAST_CONSTANT Number smaller(Number a, Number b) {
    return a < b ? a : b;
}

template <typename Dst, typename Rule, typename Real>
GPUCAST_INLINE Stored<Dst> nearest_integer(Real number) {
    const Real x = without_ties<Rule>(number), least = -Real(Dst::sign_code), most = Real(Dst::max_code);
    // NaN stays, and has no low bits.
    const Real inside = least > x ? least : x;
    if constexpr (Dst::bits < 64) {
        return Stored<Dst>(ptx::low_bits(smaller(most, inside))) & Stored<Dst>(Dst::mask);
    } else {
        // As a DOUBLE the largest integer is the next power of two.
        const Real known = x < most ? inside : 0;
        const u64 whole = Dst::sign_code != 0 ? u64(i64(known)) : u64(known);
        return x >= most ? u64(Dst::max_code) : whole;
    }
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE Stored<Dst> saturated(Stored<Src> code) {
    if constexpr (!Src::is_float) {
        auto value = integer<Src>(WordFor<Src, Dst>(code));
        typedef decltype(value) Integer;
        const Integer least = Integer(0 - smaller(u64(Src::sign_code), u64(Dst::sign_code)));
        value = value > least ? value : least;
        return Stored<Dst>(smaller(value, Integer(smaller(u64(Src::max_code), u64(Dst::max_code))))) & Stored<Dst>(Dst::mask);
    } else if constexpr (Dst::bits <= 16) {
        return nearest_integer<Dst, Rule>(number<Src>(code));
    } else {
        // A float does not hold the limits of more bits.
        return nearest_integer<Dst, Rule>(double(number<Src>(code)));
    }
}

// With one NaN of its sign in place of any; conversions among floats keep both.
GPUCAST_INLINE float with_quiet_nan(float x) {
    return x != x ? ptx::as_float((ptx::bits(x) & 0x80000000) | 0x7fc00000) : x;
}

// Whether a BFLOAT16 is rounded in halves of words, of which vectors hold more.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool rounds_halves() {
    if constexpr (!GPUCAST_COMPARES_HALVES || !is_upper_half<Dst>() || Rule::overflow() == Overflow::saturate) return false;
    else return is_same<Src, FLOAT> || takes_odd_float<Src, Dst, Rule>();
}

// The BFLOAT16 of a float.
template <bool maybe_nan>
GPUCAST_INLINE u16 upper_half_of(float number) {
    const u16 upper = u16(ptx::bits(number) >> 16), lower = u16(ptx::bits(number));
    // A tie is more than a half where the upper half is odd.
    const u16 rounded = u16(upper + ((lower | (upper & 1)) > 0x8000));
    return maybe_nan && number != number ? u16((upper & 0x8000) | 0x7fc0) : rounded;
}

// The cast of one element. The rules' own way takes longer where 64 bits hold what 32 could; the other ways round as they
// do.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE Stored<Dst> cast_element(Stored<Src> code) {
    typedef WordFor<Src, Dst> Word;
    if constexpr (rounds_by_rule<Dst, Rule>()) {
        return Stored<Dst>(cast_code<Src, Dst>(Word(code), Rule()));
    } else if constexpr (Src::is_bool) {
        // A choice is a vector instruction where the conversion of a comparison is none.
        const Stored<Dst> no = cast_code<Src, Dst>(Word(0), Rule()), yes = cast_code<Src, Dst>(Word(1), Rule());
        return code != 0 ? yes : no;
    } else if constexpr (Src::is_int && Src::bits == 8 && Dst::is_bool) {
        // A minimum is one instruction; a comparison and its result are two.
        return smaller(code, Stored<Src>(1));
    } else if constexpr (widens<Src, Dst, Rule>()) {
        return ptx::bits(ptx::cvt_f64(with_quiet_nan(as_float32<Src>(u32(code)))));
    } else if constexpr (is_same<Src, DOUBLE> && is_same<Dst, FLOAT> && Rule::overflow() != Overflow::saturate) {
        return ptx::bits(with_quiet_nan(ptx::cvt_rn_f32(ptx::as_double(code))));
    } else if constexpr (Src::is_int && Src::bits <= 16 && Src::sign_code != 0 && is_same<Dst, DOUBLE>) {
        return ptx::bits(ptx::cvt_rn_f64(int(short_integer<Src>(code))));
    } else if constexpr (rounds_halves<Src, Dst, Rule>()) {
        return upper_half_of<Src::is_float>(odd_float<Src>(code));
    } else if constexpr (takes_odd_float<Src, Dst, Rule>()) {
        return Stored<Dst>(cast_code<FLOAT, Dst>(ptx::bits(odd_float<Src>(code)), Rule()));
    } else if constexpr (wraps<Src, Dst, Rule>()) {
        return Stored<Dst>(integer_part<Src, Dst, Rule>(number<Src>(code)) & u32(Dst::mask));
    } else if constexpr (saturates<Src, Dst, Rule>()) {
        return saturated<Src, Dst, Rule>(code);
    } else {
        return Stored<Dst>(cast_code<Src, Dst>(Word(code), Rule()));
    }
}

}  // namespace gpucast
