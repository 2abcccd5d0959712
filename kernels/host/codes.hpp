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
GPUCAST_INLINE bool find_codes_plainly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, const float* factors) {
    const float first = *factors;
    u32 least = ~u32(0);
    for (u64 i = 0; i < n; ++i) {
        const float x = number<Src>(src[i]), by = is_each ? factors[i] : first;
        const u32 q = ptx::bits(Division::multiplies ? ptx::abs(x) * by : ptx::abs(x) / by);
        dst[i] = quotient_code<Element, Rule>(x, q);
        if constexpr (Division::corrects) least = ptx::min(least, from_midpoint<Element, Division::ulps>(q));
    }
    return Division::corrects && least <= 2 * Division::ulps;
}

#if GPUCAST_TABLE_BYTES == 64
typedef u16 HalfPairs __attribute__((vector_size(32)));

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

// Finite numbers.
template <typename Src, Factors factors>
GPUCAST_INLINE QuotientLanes numbers_of(const Stored<Src>* src) {
    QuotientLanes d;
    if constexpr (is_interleaved<Src, factors>()) {
        WideCodes x;
        __builtin_memcpy(&x, src, sizeof x);
        return {WideNumbers(x << 16), WideNumbers(x & 0xffff0000)};
    } else if constexpr (Src::bits == 32) {
        __builtin_memcpy(&d, src, sizeof d);
    } else if constexpr (is_upper_half<Src>()) {
        HalfPairs x[2];
        __builtin_memcpy(x, src, sizeof x);
        return {WideNumbers(__builtin_convertvector(x[0], WideCodes) << 16), WideNumbers(__builtin_convertvector(x[1], WideCodes) << 16)};
    } else {
        ptx::Halves x[2];
        __builtin_memcpy(x, src, sizeof x);
        return {ptx::floats_of_halves(x[0]), ptx::floats_of_halves(x[1])};
    }
    return d;
}

// The lower halves of integers in the order of the numbers that `numbers_of` gave.
template <typename Src, Factors factors>
GPUCAST_INLINE BytePairs lower_halves(WideIntegers a, WideIntegers b) {
    if constexpr (is_interleaved<Src, factors>()) return BytePairs(WideCodes(b) << 16 | (WideCodes(a) & 0xffff));
    BytePairs places;
    for (u32 i = 0; i < lanes; ++i) places[i] = u16(2 * i);
    return gathered_words(places, BytePairs(a), BytePairs(b));
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
GPUCAST_INLINE bool any_at_least(WideCodes a, u32 least) { return any_at_most(~a, ~least); }

// The same by lanes of 16 bits, for 32 elements or more. `by`: one factor, or two; each its own one comes from `all`. Calls
// correct(i) where some of the 32 from i on may be wrong.
template <typename Src, typename Element, typename Rule, typename Division, Factors factors, typename Correct>
GPUCAST_INLINE void find_codes_in_lanes(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, [[maybe_unused]] const float* all,
                                        QuotientLanes by, const Correct& correct) {
    for (u64 i = 0;; i += lanes) {
        // The last ones end with the block: some are computed twice.
        if (n - i < lanes) i = n - lanes;
        if constexpr (factors == Factors::each) __builtin_memcpy(&by, all + i, sizeof by);
        QuotientLanes q = numbers_of<Src, factors>(src + i);
        if constexpr (Division::multiplies) q = {q.first * by.first, q.second * by.second};
        else q = {q.first / by.first, q.second / by.second};
        const BytePairs results = narrowed<UpperHalf, Element, Rule, false>(upper_halves<Src, factors>(q));
        const HalfBytes bytes = __builtin_convertvector(results, HalfBytes);
        __builtin_memcpy(dst + i, &bytes, sizeof bytes);
        if constexpr (Division::corrects) {
            const WideCodes first = from_midpoint<Element, Division::ulps>(WideCodes(q.first) & 0x7fffffff);
            const WideCodes second = from_midpoint<Element, Division::ulps>(WideCodes(q.second) & 0x7fffffff);
            if (any_at_most(first < second ? first : second, 2 * Division::ulps)) correct(i);
        }
        if (i + lanes >= n) break;
    }
}
#endif

// The codes of the quotients of floats.
template <typename Src, typename Element, typename Rule, typename Division>
struct Quotient {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const typename Division::OfBlock OfBlock;
    enum : u64 { least = is_float4<Element>() || sizeof(OfBlock) == 8 ? shorter_block : short_block };

    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, void* more) {
        Together(d, 1).adjacent(src, dst, 1, n, more);
    }

    struct Together {
#if GPUCAST_TABLE_BYTES == 64
        enum : bool { takes_adjacent = narrows<FLOAT, Element, Rule>() };
#else
        enum : bool { takes_adjacent = 0 };
#endif
        Together(OfBlock* own_, u64 n) : own(own_) {
            for (u64 i = 0; i < n; ++i) factors[i] = Division::factor(own[i]), are_known &= Division::is_known(own[i]);
        }
        GPUCAST_INLINE void row(const Source* src, u8* dst, u64 n, void* more) { find_codes<true>(src, dst, n, own, factors, are_known, more); }
        GPUCAST_INLINE void adjacent(const Source* src, u8* dst, u64 count, u64 length, void* more) {
            u64 i = 0;
            if (length == shorter_block && !rounds(more)) {
                for (; i + 2 <= count; i += 2) find_pair(src + i * length, dst + i * length, own + i, factors + i, are_known, more);
            }
            const auto find_rest = [&](u64 n) {
                for (; i < count; ++i) find_codes<false>(src + i * n, dst + i * n, n, own + i, factors + i, are_known, more);
            };
            // With a loop of its own for the usual length.
            if (length == short_block) find_rest(short_block);
            else find_rest(length);
        }
        OfBlock* const own;
        bool are_known = true;
        alignas(64) float factors[long_block];
    };

   private:
    // Those of FLOAT with `more`, and rounded to the source once more.
    static GPUCAST_INLINE bool rounds(const void* more) {
        return Src::bits == 16 && is_e4m3<Element>() && !Division::multiplies && more && static_cast<const Integers*>(more)->rounds;
    }

    // Two blocks of `shorter_block`.
    static GPUCAST_INLINE void find_pair([[maybe_unused]] const Source* src, [[maybe_unused]] u8* dst, [[maybe_unused]] OfBlock* d,
                                         [[maybe_unused]] const float* factors, [[maybe_unused]] bool are_known, [[maybe_unused]] void* more) {
#if GPUCAST_TABLE_BYTES == 64
        if constexpr (narrows<FLOAT, Element, Rule>()) {
            const WideNumbers none = {};
            const auto correct_both = [&](u64) {
                if (more) return;
                for (u64 i = 0; i < 2; ++i) correct<false>(src + i * shorter_block, dst + i * shorter_block, shorter_block, d + i);
            };
            find_codes_in_lanes<Src, Element, Rule, Division, Factors::two>(src, dst, lanes, factors, {none + factors[0], none + factors[1]}, correct_both);
            if (Division::corrects && !are_known) correct_both(0);
        }
#endif
    }

    // With `more` the quotients are those of FLOAT, so that there is nothing to correct.
    template <bool is_each>
    static GPUCAST_INLINE void find_codes(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, const float* factors,
                                          bool are_known, void* more) {
        if (rounds(more)) {
            for (u64 i = 0; i < n; ++i) {
                const float x = number<Src>(src[i]);
                dst[i] = quotient_code<Element, Rule>(x, ptx::bits(rounded<Src>(ptx::abs(x) / factors[is_each ? i : 0])));
            }
            return;
        }
        const bool may_correct = Division::corrects && !more;
#if GPUCAST_TABLE_BYTES == 64
        if constexpr (narrows<FLOAT, Element, Rule>()) {
            if (n >= lanes && (are_known || !may_correct)) {
                const WideNumbers by = WideNumbers{} + *factors;
                const auto correct_some = [&](u64 i) {
                    if (may_correct) correct<is_each>(src + i, dst + i, lanes, d + (is_each ? i : 0));
                };
                find_codes_in_lanes<Src, Element, Rule, Division, is_each ? Factors::each : Factors::one>(src, dst, n, factors, {by, by}, correct_some);
                return;
            }
        }
#endif
        const bool is_wrong = find_codes_plainly<Src, Element, Rule, Division, is_each>(src, dst, n, factors) || !are_known;
        if (may_correct && is_wrong) correct<is_each>(src, dst, n, d);
    }

    template <bool is_each>
    static __attribute__((noinline)) void correct(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d) {
        // Vectors as wide as the shortest blocks.
#pragma omp simd simdlen(16)
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
__attribute__((noinline)) void divide_wholly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, const float* d, const i32* zero,
                                             Integers to) {
    const double large = 0x1.8p52;
#pragma omp simd simdlen(16)
    for (u64 i = 0; i < n; ++i) {
        const u64 own = is_each ? i : 0;
        const double q = double(number<Src>(src[i])) / double(d[own]);
        dst[i] = integer_code(i32(q + large - large) + zero[own], to);
    }
}

template <typename Src>
struct Whole {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const Step OfBlock;
    enum : u64 { least = short_block };

    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* step, void* more) {
        Together(step, 1).adjacent(src, dst, 1, n, more);
    }

    struct Together {
        enum : bool { takes_adjacent = 1 };
        Together(OfBlock* own, u64 n) {
            for (u64 i = 0; i < n; ++i) {
                d[i] = own[i].d, zero[i] = own[i].zero, reciprocal[i] = 1 / own[i].d;
                are_known &= ByReciprocal::is_known(double(own[i].d));
            }
        }
        GPUCAST_INLINE void row(const Source* src, u8* dst, u64 n, void* more) {
            const Integers to = *static_cast<const Integers*>(more);
            find_codes<true>(src, dst, n, d, zero, to.in_float ? d : reciprocal, are_known, to);
        }
        GPUCAST_INLINE void adjacent(const Source* src, u8* dst, u64 count, u64 length, void* more) {
            const Integers to = *static_cast<const Integers*>(more);
            const float* const factors = to.in_float ? d : reciprocal;
            const auto find = [&](u64 n) {
                for (u64 i = 0; i < count; ++i) find_codes<false>(src + i * n, dst + i * n, n, d + i, zero + i, factors + i, are_known, to);
            };
            // With a loop of its own for the usual length.
            if (length == short_block) find(short_block);
            else find(length);
        }
        bool are_known = true;
        alignas(64) float d[long_block], reciprocal[long_block];
        alignas(64) i32 zero[long_block];
    };

   private:
    enum class Way { reciprocals, products, quotients, rounded_products, rounded_quotients };

    // Compilers make vector instructions of loops without choices that are the same for all elements.
    template <bool is_each>
    static GPUCAST_INLINE void find_codes(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, const float* d, const i32* zero,
                                          const float* factors, bool are_known, Integers to) {
        if (!to.in_float) {
            if (are_known) round_all<is_each, Way::reciprocals>(src, dst, n, d, zero, factors, to);
            else divide_wholly<Src, is_each>(src, dst, n, d, zero, to);
        } else if (Src::bits == 16 && to.rounds) {
            if (to.products) round_all<is_each, Way::rounded_products>(src, dst, n, d, zero, factors, to);
            else round_all<is_each, Way::rounded_quotients>(src, dst, n, d, zero, factors, to);
        } else {
            if (to.products) round_all<is_each, Way::products>(src, dst, n, d, zero, factors, to);
            else round_all<is_each, Way::quotients>(src, dst, n, d, zero, factors, to);
        }
    }

    // A reciprocal and its product are off by half an ULP each, of quotients below 2^9 by 2^-14 together; others are beyond all codes.
    // What is that near to a midpoint is computed again.
    template <bool is_each, Way way>
    static GPUCAST_INLINE void round_all(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, const float* d, const i32* zero,
                                         const float* factors, Integers to) {
        const bool divides = way == Way::quotients || way == Way::rounded_quotients, rounds = way == Way::rounded_products || way == Way::rounded_quotients;
        const float large = 0x1.8p23f;
        const u32 near = ptx::bits(0.5f - 0x1p-14f);
#if GPUCAST_TABLE_BYTES == 64
        constexpr Factors each = is_each ? Factors::each : Factors::one;
        const WideIntegers least = WideIntegers{} + to.least, most = WideIntegers{} + to.most;
        for (u64 i = 0; !rounds && n >= lanes; i += lanes) {
            // The last ones end with the block: some are computed twice.
            if (n - i < lanes) i = n - lanes;
            QuotientLanes by = {WideNumbers{} + *factors, WideNumbers{} + *factors};
            WideIntegers zeros[2] = {WideIntegers{} + *zero, WideIntegers{} + *zero};
            if (is_each) __builtin_memcpy(&by, factors + i, sizeof by), __builtin_memcpy(zeros, zero + i, sizeof zeros);
            QuotientLanes q = numbers_of<Src, each>(src + i);
            if (divides) q = {q.first / by.first, q.second / by.second};
            else q = {q.first * by.first, q.second * by.second};
            const WideNumbers first = q.first + large, second = q.second + large;
            const auto code = [&](WideNumbers sum, WideIntegers of) {
                const WideIntegers code = WideIntegers(sum) + (of - i32(ptx::bits(large))), above = code > least ? code : least;
                return above < most ? above : most;
            };
            const BytePairs codes = lower_halves<Src, each>(code(first, zeros[0]), code(second, zeros[1]));
            const HalfBytes bytes = __builtin_convertvector(codes, HalfBytes) & u8(to.mask);
            __builtin_memcpy(dst + i, &bytes, sizeof bytes);
            if (way == Way::reciprocals) {
                const WideCodes a = WideCodes(q.first - (first - large)) & 0x7fffffff, b = WideCodes(q.second - (second - large)) & 0x7fffffff;
                if (any_at_least(a > b ? a : b, near)) divide_wholly<Src, is_each>(src + i, dst + i, lanes, d + (is_each ? i : 0), zero + (is_each ? i : 0), to);
            }
            if (i + lanes >= n) return;
        }
#endif
        const float first = *factors;
        const i32 first_zero = *zero;
        u32 farthest = 0;
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]), by = is_each ? factors[i] : first, product = divides ? x / by : x * by;
            const float q = rounds ? rounded<Src>(product) : product, sum = q + large;
            dst[i] = integer_code(i32(ptx::bits(sum) - ptx::bits(large)) + (is_each ? zero[i] : first_zero), to);
            const u32 rest = ptx::bits(ptx::abs(q - (sum - large)));
            farthest = farthest > rest ? farthest : rest;
        }
        if (way == Way::reciprocals && farthest >= near) divide_wholly<Src, is_each>(src, dst, n, d, zero, to);
    }
};

}  // namespace gpucast
