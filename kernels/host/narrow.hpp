// SPDX-License-Identifier: Apache-2.0
// Casts to floats of 8 bits or fewer in lanes of 16 bits, of which vectors hold twice as many as of a float's.
namespace gpucast {

// Elements that are cast together.
enum : u64 { lanes = 32 };

// Whether a FLOAT16's own code is rounded to the destination's: `cuts_halves`, and FLOAT8UE5M3, whose largest field has numbers.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool cuts_codes() {
    if constexpr (!is_float16<Src>() || !is_small<Dst>()) return false;
    else return cuts_halves<Src, Dst>() || (Dst::bits == 8 && int(Dst::bias) == int(Src::bias) && u32(Dst::max_code) >> Dst::mantissa_bits == 31);
}

// Whether a cast goes this way. Of a FLOAT16 there is no way for subnormal numbers, unless they become zero, or are cut as they
// are; of a DOUBLE no infinity comes that was a number.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool narrows() {
    if constexpr (GPUCAST_TABLE_BYTES != 64 || !is_small<Dst>() || Src::bits < 16 || Src::is_bool || rounds_by_rule<Dst, Rule>()) return false;
    else if constexpr (Dst::bits > 8 || (Src::bits == 64 && Src::is_float && Rule::infinity_is_nan())) return false;
    else if constexpr (is_float16<Src>()) return cuts_codes<Src, Dst>() || Dst::bias + Dst::mantissa_bits <= 14;
    else return has_float32<Src>();
}

#if GPUCAST_TABLE_BYTES == 64
typedef u8 HalfBytes __attribute__((vector_size(32)));
typedef u32 WideCodes __attribute__((vector_size(64)));
typedef int WideIntegers __attribute__((vector_size(64)));
typedef float WideNumbers __attribute__((vector_size(64)));

GPUCAST_INLINE BytePairs every(u32 value) { return BytePairs{} + u16(value); }
GPUCAST_INLINE BytePairs least(BytePairs a, BytePairs b) { return a < b ? a : b; }
GPUCAST_INLINE BytePairs most(BytePairs a, BytePairs b) { return a < b ? b : a; }
// Shifts by the width or more give 0.
GPUCAST_INLINE BytePairs right(BytePairs a, BytePairs by) {
    asm("vpsrlvw %1, %0, %0" : "+v"(a) : "v"(by));
    return a;
}
GPUCAST_INLINE BytePairs left(BytePairs a, BytePairs by) {
    asm("vpsllvw %1, %0, %0" : "+v"(a) : "v"(by));
    return a;
}
// Words of two vectors by their places.
GPUCAST_INLINE BytePairs gathered_words(BytePairs places, BytePairs a, BytePairs b) {
    asm("vpermi2w %2, %1, %0" : "+v"(places) : "v"(a), "v"(b));
    return places;
}

// The upper halves of floats, rounded to odd: enough bits for one more rounding to 3 bits or fewer behind the first.
GPUCAST_INLINE BytePairs odd_upper_halves(const void* floats) {
    BytePairs a, b, places;
    __builtin_memcpy(&a, floats, sizeof a);
    __builtin_memcpy(&b, static_cast<const u8*>(floats) + sizeof a, sizeof b);
    for (u32 i = 0; i < lanes; ++i) places[i] = u16(2 * i);
    const BytePairs upper = gathered_words(places + 1, a, b), lower = gathered_words(places, a, b);
    return lower != 0 ? upper | 1 : upper;
}

// The same of integers of 16 bits: those at odd places and at even ones.
template <bool is_signed>
GPUCAST_INLINE BytePairs odd_upper_halves_of_integers(const void* integers) {
    WideCodes x;
    __builtin_memcpy(&x, integers, sizeof x);
    const WideCodes even = is_signed ? WideCodes(WideIntegers(x << 16) >> 16) : x & 0xffff;
    const WideCodes odd = is_signed ? WideCodes(WideIntegers(x) >> 16) : x >> 16;
    const WideCodes a = WideCodes(__builtin_convertvector(WideIntegers(even), WideNumbers)), b = WideCodes(__builtin_convertvector(WideIntegers(odd), WideNumbers));
    const BytePairs upper = BytePairs((b & 0xffff0000) | a >> 16), lower = BytePairs(b << 16 | (a & 0xffff));
    return lower != 0 ? upper | 1 : upper;
}

template <typename Src, typename Dst>
GPUCAST_INLINE BytePairs narrow_codes(const Stored<Src>* src) {
    if constexpr (is_float16<Src>() || is_upper_half<Src>()) {
        BytePairs codes;
        __builtin_memcpy(&codes, src, sizeof codes);
        return codes;
    } else if constexpr (Src::bits == 32 && Src::is_float) {
        return odd_upper_halves(src);
    } else if constexpr (Src::bits == 16) {
        return odd_upper_halves_of_integers<Src::sign_code != 0>(src);
    } else {
        float floats[lanes];
        for (u64 i = 0; i < lanes; ++i) {
            if constexpr (Src::is_float) floats[i] = odd_float<Src>(src[i]);
            else floats[i] = float32_for_small<Src>(WordFor<Src, Dst>(src[i]));
        }
        return odd_upper_halves(floats);
    }
}

struct UpperHalf {
    enum : u32 { bits = 16, mantissa_bits = 7 };
    enum : int { bias = 127 };
    enum : bool { is_float = 1 };
};

// WideCodes of the destination from those of a float of 16 bits: rounded by shifts, so that a code counts ULPs from zero on.
template <typename Half, typename Dst, typename Rule, bool maybe_nan, bool is_integer = false>
GPUCAST_INLINE BytePairs narrowed(BytePairs codes) {
    constexpr u32 bits = Half::mantissa_bits, kept = Dst::mantissa_bits, cut = bits - kept, one = 1u << bits;
    constexpr u32 last = last_code<Dst, Rule>(), rebias = u32(int(Half::bias) - int(Dst::bias));
    constexpr u32 infinite = 0x7fff & ~(one - 1);
    const BytePairs magnitude = codes & 0x7fff;
    BytePairs results;
    if constexpr (cuts_codes<Half, Dst>()) {
        // WideCodes count ULPs in the source, too, which are twice as large next to zero where the other bias is larger.
        BytePairs same = magnitude;
        if constexpr (rebias != 0) same = magnitude < u16(one) ? magnitude + magnitude : magnitude + u16(one);
        // All but infinity are below the largest number where its field is that of infinity.
        if constexpr (rebias == 0 && u32(Dst::max_code) >> kept == 31) same = magnitude < u16(infinite) ? same : every(last << cut);
        else same = least(same, every(last << cut));
        results = (same + u16((1u << (cut - 1)) - 1) + (same >> cut & 1)) >> cut;
    } else {
        const BytePairs known = least(magnitude, every(((last >> kept) + rebias) << bits | (last & ((1u << kept) - 1)) << cut));
        if constexpr (is_integer) {
            // None but zero is below the smallest normal number, and zero may have the field before.
            const BytePairs normal = most(known, every(rebias << bits));
            results = ((normal + u16((1u << (cut - 1)) - 1) + (normal >> cut & 1)) >> cut) - u16(rebias << kept);
        } else {
            // The field of the smallest normal number.
            constexpr u32 first = rebias + 1;
            const BytePairs field = known >> bits, from_first = most(field, every(first));
            // What is cut off, less one.
            const BytePairs shift = from_first - field + u16(cut - 1);
            const BytePairs significand = (known & u16(one - 1)) | u16(one), doubled = right(significand, shift);
            // To add one half less one, and one more where the last bit is set.
            const BytePairs rounded = significand + (doubled >> 1 & 1) - left(every(0xffff), shift) - 1;
            results = right(rounded, shift + 1) + ((from_first - u16(first)) << kept);
        }
    }
    BytePairs signs = codes >> (16 - Dst::bits) & u16(Dst::sign_code);
    if constexpr (maybe_nan) {
        const auto is_nan = Rule::infinity_is_nan() ? magnitude >= u16(infinite) : magnitude > u16(infinite);
        if constexpr (Dst::has_nan) {
            results = is_nan ? every(u32(Dst::nan_code)) : results;
        } else {
            // Nothing stands for NaN: it becomes the zero of the other sign.
            results = is_nan ? every(0) : results;
            signs = is_nan ? signs ^ u16(Dst::sign_code) : signs;
        }
    }
    if constexpr (Dst::has_negative_zero || Dst::sign_code == 0) return results | signs;
    else return results != 0 ? results | signs : results;
}

// Casts n elements, `lanes` or more.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_narrow(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, bool is_past) {
    for (u64 i = 0;; i += lanes) {
        // The last ones end with the array: some are cast twice.
        if (n - i < lanes) i = n - lanes, finish_stores(is_past), is_past = false;
        const BytePairs codes = narrow_codes<Src, Dst>(src + i);
        BytePairs results;
        if constexpr (is_float16<Src>()) results = narrowed<Src, Dst, Rule, true>(codes);
        else results = narrowed<UpperHalf, Dst, Rule, Src::has_nan, !Src::is_float>(codes);
        const HalfBytes bytes = __builtin_convertvector(results, HalfBytes);
        store(dst + i, bytes, is_past);
        if (i + lanes >= n) break;
    }
    finish_stores(is_past);
}
#else
template <typename Src, typename Dst, typename Rule, typename From, typename To>
void cast_narrow(From*, To*, u64, bool);
#endif

}  // namespace gpucast
