// SPDX-License-Identifier: Apache-2.0
// Casts of flat arrays of codes, one element after the other. The loops are plain, so that compilers make vector
// instructions of them.
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
    if constexpr (Src::is_float) return Src::bits == 64 && (is_small<Dst>() || is_upper_half<Dst>()) && !Rule::infinity_is_nan();
    else if constexpr (Src::bits >= 32) return is_upper_half<Dst>();
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

// Casts n elements.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_directly(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n) {
    for (u64 i = 0; i < n; ++i) dst[i] = cast_element<Src, Dst, Rule>(src[i]);
}

// Whether the casts of all codes are computed first, and then looked up: where a rule without a fast path takes longer.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool looks_up() {
    return sizeof(Stored<Src>) == 1 && (Src::is_float || Src::is_e8m0) && !Dst::is_bool;
}

// Elements that are looked at together before they are cast: they stay in the first-level cache.
enum : u64 { block = 512 };

// Elements that are brought to registers together: the next ones are read while these are converted.
enum : u64 { lump = 64 };

// Whether a cast is so short that its loop waits for memory.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool waits() {
    const u32 from = Src::bits, to = Dst::bits;
    if constexpr (Src::is_bool || Dst::is_bool) return true;
    else if constexpr (Src::is_e8m0 || Dst::is_e8m0) return false;
    else if constexpr (!Dst::is_float) return !Src::is_float;
    else if constexpr (Rule::overflow() == Overflow::saturate || from < 16 || to < 32) return false;
    else return Src::is_float ? from == 2 * to || to == 2 * from : from == to;
}

// ---- FLOAT16 by instructions ----

// Whether the type is FLOAT16, and there are instructions that convert it.
template <typename DType>
GPUCAST_CONSTANT bool has_instructions() {
    return GPUCAST_HALVES != 0 && is_float16<DType>();
}

GPUCAST_INLINE void convert_halves(const float* from, u16* to) { ptx::cvt_rn_f16(from, to); }
GPUCAST_INLINE void convert_halves(const u16* from, u32* to) { ptx::cvt_f32_f16(from, to); }

// n numbers.
template <typename From, typename To>
GPUCAST_INLINE void convert_halves(const From* from, To* to, u64 n) {
    u64 i = 0;
    for (; i + GPUCAST_HALVES <= n; i += GPUCAST_HALVES) convert_halves(from + i, to + i);
    if (i < n) {
        From rest[GPUCAST_HALVES] = {};
        To results[GPUCAST_HALVES];
        __builtin_memcpy(rest, from + i, (n - i) * sizeof(From));
        convert_halves(rest, results);
        __builtin_memcpy(to + i, results, (n - i) * sizeof(To));
    }
}

// Casts n numbers to FLOAT16.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void round_halves(const Stored<Src>* __restrict__ src, u16* __restrict__ dst, u64 n) {
    const bool clips = Rule::overflow() == Overflow::saturate;
    if constexpr (is_same<Src, FLOAT> && !clips) {
        convert_halves(reinterpret_cast<const float*>(src), dst, n);
        return;
    }
    const float max = ptx::as_float(float32_bits<Dst>(u32(Dst::max_code)));
    float floats[lump];
    const auto convert = [&](u64 start, u64 count) {
        for (u64 i = 0; i < count; ++i) {
            float x;
            if constexpr (takes_odd_float<Src, Dst, Rule>()) x = odd_float<Src>(src[start + i]);
            else x = float32_for_small<Src>(WordFor<Src, Dst>(src[start + i]));
            floats[i] = clips && x == x ? ptx::max(ptx::min(x, max), -max) : x;
        }
        convert_halves(floats, dst + start, count);
    };
    u64 start = 0;
    for (; start + lump <= n; start += lump) convert(start, lump);
    if (start < n) convert(start, n - start);
}

// A FLOAT16 as a float.
struct Widened : FLOAT {};

template <typename Src, typename Dst, typename Rule>
static void cast_part(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n);

// Casts n numbers of FLOAT16.
template <typename Dst, typename Rule>
GPUCAST_INLINE void cast_halves(const u16* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n) {
    if constexpr (is_same<Dst, FLOAT> && Rule::overflow() != Overflow::saturate) {
        convert_halves(src, dst, n);
        return;
    }
    u32 floats[block];
    for (u64 start = 0; start < n; start += block) {
        const u64 count = n - start < block ? n - start : u64(block);
        convert_halves(src + start, floats, count);
        cast_part<Widened, Dst, Rule>(floats, dst + start, count);
    }
}

template <typename Src, typename Dst, typename Rule>
static __attribute__((noinline)) void cast_part(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n) {
    if constexpr (has_instructions<Src>()) {
        cast_halves<Dst, Rule>(src, dst, n);
        return;
    }
    if constexpr (looks_up<Src, Dst>()) {
        if (n > block) {
            Stored<Src> codes[256];
            Stored<Dst> table[256];
            for (u32 i = 0; i < 256; ++i) codes[i] = Stored<Src>(i);
            cast_directly<Src, Dst, Rule>(codes, table, 256);
            // A shorter loop takes twice as long at some addresses.
#pragma GCC unroll 4
            for (u64 i = 0; i < n; ++i) dst[i] = table[src[i]];
            return;
        }
    }
    if constexpr (waits<Src, Dst, Rule>()) {
        // Where vectors have 64 bytes, those of 32 take less time: a load may have to wait for a store to where it reads
        // but for the upper bits of the address. Of a loop that copies compilers would make a memcpy, which takes longer.
        Stored<Dst> none = 0;
        if constexpr (Dst::is_int && sizeof(*src) == sizeof(*dst)) asm("" : "+r"(none));
#pragma omp simd simdlen(32 / (sizeof(*src) < sizeof(*dst) ? sizeof(*src) : sizeof(*dst)))
        for (u64 i = 0; i < n; ++i) dst[i] = cast_element<Src, Dst, Rule>(src[i]) | none;
    } else if constexpr (has_instructions<Dst>() && has_float32<Src>() && !rounds_by_rule<Dst, Rule>()) {
        round_halves<Src, Dst, Rule>(src, dst, n);
    } else {
        cast_directly<Src, Dst, Rule>(src, dst, n);
    }
}

// So many elements that those before the start of a cache line may be cast one by one.
enum : u64 { many = 1 << 14 };

// Casts n elements, many of them from the start of a cache line on: of an array that starts 16 bytes behind one, as
// NumPy's do, each wide vector would take two lines. That of the wider elements counts, which has more vectors.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_array(const void* from, void* to, u64 n) {
    const Stored<Src>* src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* dst = static_cast<Stored<Dst>*>(to);
    const u64 head = n > many ? sizeof(*src) > sizeof(*dst) ? before_line(src) : before_line(dst) : 0;
    if (head) cast_part<Src, Dst, Rule>(src, dst, head);
    cast_part<Src, Dst, Rule>(src + head, dst + head, n - head);
}

template <typename DType>
GPUCAST_CONSTANT u32 magnitude_of(u32 code) {
    return code & u32(DType::mask ^ DType::sign_code);
}

// The largest magnitude, as a code of the source, that becomes zero.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT u32 last_zero() {
    u32 zero = 0, other = u32(Src::max_code);
    while (other - zero > 1) {
        const u32 middle = zero + (other - zero) / 2;
        const bool is_zero = encode<Dst>(decode<Src>(middle, FloatFamily()), Rule(), FloatFamily()) == 0;
        (is_zero ? zero : other) = middle;
    }
    return zero;
}

// Casts n elements among floats of 32 bits or fewer, n below 2^32. stats: the largest magnitude of a result as a code,
// at least that of the largest number where a result overflows or a source is infinite or NaN; how many results are
// zero, unless a source is NaN; how many sources are zero. A cast keeps the order of magnitudes, so that the sources
// tell all that, and the loop need not wait for the results.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_counted(const void* from, void* to, u64 n, u32* stats) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* __restrict__ dst = static_cast<Stored<Dst>*>(to);
    constexpr u32 last = last_zero<Src, Dst, Rule>();
    u32 zeros = 0, top = 0, least = ~u32(0);
    for (u64 i = 0; i < n; ++i) {
        const u32 code = src[i], magnitude = magnitude_of<Src>(code);
        dst[i] = Stored<Dst>(cast_code<Src, Dst>(code, Rule()));
        zeros += magnitude <= last;
        top = top > magnitude ? top : magnitude;
        least = least < magnitude ? least : magnitude;
    }
    // Sources that are zero are rare in most files, so that a second look at all of them is, too.
    u32 source_zeros = 0;
    if (least == 0) {
        for (u64 i = 0; i < n; ++i) source_zeros += magnitude_of<Src>(src[i]) == 0;
    }
    const u32 largest = cast_code<Src, Dst>(top, Rule());
    // NaN may have the code of the negative zero, or none.
    const bool is_beyond = top > u32(Src::max_code) || (top > last && magnitude_of<Dst>(largest) == 0);
    stats[0] = is_beyond ? u32(Dst::mask) : magnitude_of<Dst>(largest);
    stats[1] = zeros;
    stats[2] = source_zeros;
}

}  // namespace gpucast

#define GPUCAST_CAST(NAME, SRC, DST, ...)                                                         \
    static void NAME(const void* from, void* to, unsigned long long n) {                  \
        const gpucast::Exactly exactly;                                                           \
        gpucast::cast_array<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n);                \
    }
#define GPUCAST_COUNTED_CAST(NAME, SRC, DST, ...)                                                 \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned* stats) { \
        const gpucast::Exactly exactly;                                                           \
        gpucast::cast_counted<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n, stats);       \
    }
