// SPDX-License-Identifier: Apache-2.0
// The codes of blocks of finite numbers, from the quotients and products of FLOAT, corrected where those of DOUBLE may differ.
namespace gpucast {

// The code of a quotient's magnitude, with the sign of `x`. No quotient is NaN.
template <typename Element, typename Rule>
GPUCAST_INLINE u8 quotient_code(float x, u32 magnitude) {
    const u32 code = small_magnitude<Element, false>(ptx::as_float(magnitude), Rule());
    return u8(signed_lanes<FLOAT, Element, 1>({code}, {ptx::bits(x)}));
}

// The quotient of a magnitude as DOUBLE, then as a FLOAT on the same side of every midpoint: rounded to odd.
GPUCAST_INLINE u32 odd_quotient(float a, double d) {
    const double exact = double(a) / d;
    return ptx::bits(as_float32<DOUBLE>(ptx::bits(exact)));
}

// The codes of an integer format, and the bits of one. `products`: numbers are multiplied; `in_float`: by FLOAT's own
// quotients and products; `rounds`: these are rounded to the source once more.
struct Integers {
    i32 least, most;
    u32 mask, products, in_float, rounds;
};

// As arithmetic rounds to a type: too large numbers become infinite.
typedef CastRule<Overflow::infinity, false, Rounding::ties_to_even, RoundMode::up> ToSource;

template <typename Src>
GPUCAST_INLINE float rounded(float q) {
    return float(number<Src>(Stored<Src>(cast_code<FLOAT, Src>(ptx::bits(q), ToSource()))));
}

// How quotients come from numbers and what their block has: `factor` of it divides or multiplies. `ulps`: how many ULPs a quotient
// can be off. `corrects`: where it may be, or where it is rounded once more than that of DOUBLE, a midpoint of two codes is
// looked at again.
struct ByQuotient {
    typedef float OfBlock;
    enum : bool { multiplies = 0, corrects = 1 };
    enum : u32 { ulps = 0 };
    static GPUCAST_INLINE float factor(float d) { return d; }
    static GPUCAST_INLINE bool is_known(float) { return true; }
};

// By a power of two, whose reciprocal is here, or times a FLOAT.
struct ByProduct {
    typedef float OfBlock;
    enum : bool { multiplies = 1, corrects = 0 };
    enum : u32 { ulps = 0 };
    static GPUCAST_INLINE float factor(float d) { return d; }
    static GPUCAST_INLINE bool is_known(float) { return true; }
};

// By a `d` that has to be rounded to FLOAT. It, its reciprocal and the product are rounded, each by half an ULP at most, or by one
// where the quotient has the smaller significand. A division of each number would take longer than all the rest.
struct ByReciprocal {
    typedef double OfBlock;
    enum : bool { multiplies = 1, corrects = 1 };
    enum : u32 { ulps = 4 };
    static GPUCAST_INLINE float factor(double d) { return 1 / float(d); }
    // Of others the reciprocal is no normal FLOAT.
    static GPUCAST_INLINE bool is_known(double d) { return d >= 0x1p-126 && d <= 0x1p126; }
};

// How far a quotient's code is from those that may be midpoints of two codes, if that is not more than `ulps`; else more than
// 2 * `ulps`. A midpoint has two significant bits more than the codes' mantissa, the last of which is set, or fewer between
// subnormal codes.
template <typename Element, u32 ulps, typename Codes>
GPUCAST_INLINE Codes from_midpoint(Codes q) {
    constexpr u32 last = 1u << (22 - int(Element::mantissa_bits)), least_normal = u32(128 - Element::bias) << 23;
    // Zero, and what else is below all midpoints, is as far as this is.
    constexpr u32 harmless = least_normal - ((u32(Element::mantissa_bits) + 3) << 23) + last / 2;
    static_assert(least_normal > (u32(Element::mantissa_bits) + 3) << 23, "no FLOAT is below all midpoints");
    const Codes known = q > harmless ? q : Codes{} + harmless;
    const Codes normal = (known + (ulps - last)) & (2 * last - 1);
    const Codes subnormal = ((known + ulps) & (last - 1)) | (0 - ((known + (0x80000000 - least_normal)) >> 31));
    return normal < subnormal ? normal : subnormal;
}

// The codes of quotients one by one, with a factor for each element or one for all. Whether some may be wrong.
template <typename Src, typename Element, typename Rule, typename Division, bool is_each>
GPUCAST_INLINE bool find_codes_plainly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n,
                                       const typename Division::OfBlock* of) {
    const float first = Division::factor(*of);
    u32 least = ~u32(0);
    for (u64 i = 0; i < n; ++i) {
        const float x = number<Src>(src[i]), by = is_each ? Division::factor(of[i]) : first;
        const u32 q = ptx::bits(Division::multiplies ? ptx::abs(x) * by : ptx::abs(x) / by);
        dst[i] = quotient_code<Element, Rule>(x, q);
        if constexpr (Division::corrects) least = ptx::min(least, from_midpoint<Element, Division::ulps>(q));
    }
    return Division::corrects && least <= 2 * Division::ulps;
}

#if GPUCAST_TABLE_BYTES == 64
// 32 quotients: the first and the second half of them, or those of even and of odd places.
struct QuotientLanes {
    WideNumbers first, second;
};

// Which factors 32 elements have: one for all, two for 16 each, or each its own.
enum class Factors { one, two, each };

// Whether numbers are brought to lanes by their places, even or odd, which takes fewer instructions.
template <typename Src, Factors factors>
GPUCAST_CONSTANT bool is_interleaved() {
    return is_upper_half<Src>() && factors == Factors::one;
}

template <typename Src, Factors factors>
GPUCAST_INLINE QuotientLanes numbers_of(const Stored<Src>* src) {
    QuotientLanes d;
    if constexpr (is_interleaved<Src, factors>()) {
        WideCodes x;
        __builtin_memcpy(&x, src, sizeof x);
        return {WideNumbers(x << 16), WideNumbers(x & 0xffff0000)};
    } else if constexpr (Src::bits == 32) {
        __builtin_memcpy(&d, src, sizeof d);
    } else {
        alignas(64) float floats[lanes];
        for (u64 i = 0; i < lanes; ++i) floats[i] = number<Src>(src[i]);
        __builtin_memcpy(&d, floats, sizeof d);
    }
    return d;
}

template <typename Src, Factors factors>
GPUCAST_INLINE BytePairs upper_halves(QuotientLanes q) {
    if constexpr (is_interleaved<Src, factors>()) {
        const WideCodes a = WideCodes(q.first), b = WideCodes(q.second);
        const BytePairs upper = BytePairs((b & 0xffff0000) | a >> 16), lower = BytePairs(b << 16 | (a & 0xffff));
        return lower != 0 ? upper | 1 : upper;
    } else {
        return odd_upper_halves(&q);
    }
}

GPUCAST_INLINE bool any_at_most(WideCodes a, u32 most) {
    u32 mask;
    const WideCodes limit = WideCodes{} + most;
    asm("vpcmpleud %2, %1, %%k1\n\tkmovw %%k1, %0" : "=r"(mask) : "v"(a), "v"(limit) : "k1");
    return mask != 0;
}

// The same by lanes of 16 bits, for 32 elements or more. `by`: one factor, or two; of each its own one is found here.
template <typename Src, typename Element, typename Rule, typename Division, Factors factors>
GPUCAST_INLINE bool find_codes_in_lanes(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n,
                                        [[maybe_unused]] const typename Division::OfBlock* of, QuotientLanes by) {
    WideCodes least = WideCodes{} - 1;
    for (u64 i = 0;; i += lanes) {
        // The last ones end with the block: some are computed twice.
        if (n - i < lanes) i = n - lanes;
        if constexpr (factors == Factors::each) {
            alignas(64) float own[lanes];
            for (u64 j = 0; j < lanes; ++j) own[j] = Division::factor(of[i + j]);
            __builtin_memcpy(&by, own, sizeof by);
        }
        QuotientLanes q = numbers_of<Src, factors>(src + i);
        if constexpr (Division::multiplies) q = {q.first * by.first, q.second * by.second};
        else q = {q.first / by.first, q.second / by.second};
        if constexpr (Division::corrects) {
            const WideCodes first = from_midpoint<Element, Division::ulps>(WideCodes(q.first) & 0x7fffffff);
            const WideCodes second = from_midpoint<Element, Division::ulps>(WideCodes(q.second) & 0x7fffffff);
            const WideCodes both = first < second ? first : second;
            least = both < least ? both : least;
        }
        const BytePairs results = narrowed<UpperHalf, Element, Rule, false>(upper_halves<Src, factors>(q));
        const HalfBytes bytes = __builtin_convertvector(results, HalfBytes);
        __builtin_memcpy(dst + i, &bytes, sizeof bytes);
        if (i + lanes >= n) break;
    }
    return Division::corrects && any_at_most(least, 2 * Division::ulps);
}
#endif

// The codes of the quotients of floats.
template <typename Src, typename Element, typename Rule, typename Division>
struct Quotient {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const typename Division::OfBlock OfBlock;
    enum : u64 { least = is_float4<Element>() || sizeof(OfBlock) == 8 ? shorter_block : short_block };

    // With `more` the quotients are those of FLOAT, so that there is nothing to correct.
    template <bool is_each>
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, void* more) {
        if constexpr (Src::bits == 16 && is_e4m3<Element>() && !Division::multiplies) {
            if (more && static_cast<const Integers*>(more)->rounds) {
                for (u64 i = 0; i < n; ++i) {
                    const float x = number<Src>(src[i]);
                    dst[i] = quotient_code<Element, Rule>(x, ptx::bits(rounded<Src>(ptx::abs(x) / d[is_each ? i : 0])));
                }
                return;
            }
        }
        bool is_wrong = Division::corrects && !is_each && !Division::is_known(*d);
        for (u64 i = 0; Division::corrects && is_each && i < n; ++i) is_wrong |= !Division::is_known(d[i]);
#if GPUCAST_TABLE_BYTES == 64
        if constexpr (narrows<FLOAT, Element, Rule>()) {
            if (n >= lanes) {
                const WideNumbers by = WideNumbers{} + Division::factor(*d);
                is_wrong |= find_codes_in_lanes<Src, Element, Rule, Division, is_each ? Factors::each : Factors::one>(src, dst, n, d, {by, by});
            } else {
                is_wrong |= find_codes_plainly<Src, Element, Rule, Division, is_each>(src, dst, n, d);
            }
        } else
#endif
        {
            is_wrong |= find_codes_plainly<Src, Element, Rule, Division, is_each>(src, dst, n, d);
        }
        if (Division::corrects && is_wrong && !more) correct<is_each>(src, dst, n, d);
    }

    // Adjacent blocks of 16, two at a time.
    static GPUCAST_CONSTANT bool takes_pairs() {
#if GPUCAST_TABLE_BYTES == 64
        return narrows<FLOAT, Element, Rule>() && u64(least) == u64(shorter_block);
#else
        return false;
#endif
    }
    static GPUCAST_INLINE void pairs([[maybe_unused]] const Source* __restrict__ src, [[maybe_unused]] u8* __restrict__ dst,
                                     [[maybe_unused]] u64 count, [[maybe_unused]] OfBlock* d, [[maybe_unused]] void* more) {
#if GPUCAST_TABLE_BYTES == 64
        // Factors of many blocks are computed together.
        float factors[lanes];
        for (u64 first = 0; first < count; first += lanes) {
            const u64 some = count - first < lanes ? count - first : u64(lanes);
            bool is_known = true;
            for (u64 i = 0; i < some; ++i) {
                factors[i] = Division::factor(d[first + i]);
                is_known &= Division::is_known(d[first + i]);
            }
            for (u64 i = 0; i < some; i += 2) {
                const WideNumbers none = {};
                const u64 at = (first + i) * shorter_block;
                const bool is_wrong = find_codes_in_lanes<Src, Element, Rule, Division, Factors::two>(
                    src + at, dst + at, lanes, d, {none + factors[i], none + factors[i + 1]});
                if (Division::corrects && (is_wrong || !is_known) && !more) {
                    correct<false>(src + at, dst + at, shorter_block, d + first + i);
                    correct<false>(src + at + shorter_block, dst + at + shorter_block, shorter_block, d + first + i + 1);
                }
            }
        }
#endif
    }

   private:
    template <bool is_each>
    static __attribute__((noinline)) void correct(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d) {
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]);
            dst[i] = quotient_code<Element, Rule>(x, odd_quotient(ptx::abs(x), double(d[is_each ? i : 0])));
        }
    }
};

template <typename Src, typename Element, typename Rule>
struct Divided : Quotient<Src, Element, Rule, ByQuotient> {};
template <typename Src, typename Element, typename Rule>
struct Multiplied : Quotient<Src, Element, Rule, ByProduct> {};
template <typename Src, typename Element, typename Rule>
struct Near : Quotient<Src, Element, Rule, ByReciprocal> {};

// Of a block: a FLOAT that divides, or multiplies, and the zero point.
struct Step {
    float d;
    i32 zero;
};

GPUCAST_INLINE u8 integer_code(i32 code, Integers to) {
    const i32 above = code < to.least ? to.least : code;
    return u8(u32(above > to.most ? to.most : above) & to.mask);
}

// The codes of finite numbers whose quotients are all below 2^22. Adding a number whose ULP is 1, and subtracting it
// again, rounds to an integer, ties to even.
template <typename Src, bool is_each>
__attribute__((noinline)) void divide_wholly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, const Step* step, Integers to) {
    const double large = 0x1.8p52;
    for (u64 i = 0; i < n; ++i) {
        const Step& by = step[is_each ? i : 0];
        const double q = double(number<Src>(src[i])) / double(by.d);
        dst[i] = integer_code(i32(q + large - large) + by.zero, to);
    }
}

template <typename Src>
struct Whole {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const Step OfBlock;
    enum : u64 { least = short_block };
    template <bool is_each>
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* step, void* more) {
        const Integers to = *static_cast<const Integers*>(more);
        bool has_midpoints;
        // Compilers make vector instructions of loops without choices that are the same for all elements.
        if (Src::bits == 16 && to.rounds) {
            has_midpoints = to.products ? round_all<is_each, true, true>(src, dst, n, step, to) : round_all<is_each, false, true>(src, dst, n, step, to);
        } else {
            has_midpoints = to.products ? round_all<is_each, true, false>(src, dst, n, step, to) : round_all<is_each, false, false>(src, dst, n, step, to);
        }
        if (has_midpoints && !to.in_float) divide_wholly<Src, is_each>(src, dst, n, step, to);
    }

   private:
    template <bool is_each, bool products, bool rounds>
    static GPUCAST_INLINE bool round_all(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* step, Integers to) {
        const Step first = *step;
        const float large = 0x1.8p23f;
        u32 midpoints = 0;
        for (u64 i = 0; i < n; ++i) {
            const Step own = is_each ? step[i] : first;
            const float x = number<Src>(src[i]), product = products ? x * own.d : x / own.d;
            const float q = rounds ? rounded<Src>(product) : product;
            const float whole = q + large - large, rest = q - whole;
            dst[i] = integer_code(i32(whole) + own.zero, to);
            midpoints |= u32(rest == 0.5f) | u32(rest == -0.5f);
        }
        return midpoints != 0;
    }
};

}  // namespace gpucast
