// SPDX-License-Identifier: Apache-2.0
// The codes of blocks of finite numbers, from the quotients and products of FLOAT, and what these leave.
namespace gpucast {

// The code of a quotient. None is NaN.
template <typename Element, typename Rule>
GPUCAST_INLINE u8 quotient_code(u32 q) {
    const u32 code = small_magnitude<Element, false>(ptx::as_float(q), Rule());
    return u8(signed_lanes<FLOAT, Element, 1>({code}, {q}));
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

// Numbers that divide others, in blocks of their own: each as two FLOATs, whose sum it is, and the reciprocal of the first. They
// are multiplied, as what they divide, by a power of two, so that products of the smallest are normal numbers.
struct Reciprocals {
    struct One {
        float power, reciprocal, upper, lower;
    };
    // Of 28 bits or fewer, from 2^-149 on.
    void take(u64 i, double d) {
        power[i] = d < 0x1p-40 ? 0x1p64f : d > 0x1p40 ? 0x1p-64f : 1.0f;
        const double own = d * double(power[i]);
        upper[i] = float(own), lower[i] = float(own - double(upper[i])), reciprocal[i] = 1 / upper[i];
    }
    GPUCAST_INLINE One operator[](u64 i) const { return {power[i], reciprocal[i], upper[i], lower[i]}; }
    alignas(64) float power[long_block], reciprocal[long_block], upper[long_block], lower[long_block];
};

#if defined(__FMA__) || defined(__aarch64__)
enum : bool { has_fused_products = 1 };
GPUCAST_INLINE float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
#else
enum : bool { has_fused_products = 0 };
// Rounded twice: of a FLOAT, or of a number near zero, that is the same.
GPUCAST_INLINE float fused(float x, float y, float z) { return float(double(x) * double(y) + double(z)); }
#endif

// What a number, times `by.power`, is above the product of some bits and the divisor. Only its sign counts, which is exact.
GPUCAST_INLINE float rest_of_quotient(float x, float bits, const Reciprocals::One& by) {
    return fused(-bits, by.lower, fused(-bits, by.upper, x));
}

// FLOATs of few bits: those of a type's codes, the midpoints of two, and more between subnormal ones.
template <typename Element>
struct Middles {
    enum : u32 { unit = 1u << (22 - int(Element::mantissa_bits)), last = unit - 1 };
    static_assert(int(Element::mantissa_bits) <= 4, "the upper half of a FLOAT has numbers between these");
};

// How quotients come from numbers and what their blocks have: a FLOAT that divides or multiplies, of any sign.
template <bool multiplies>
struct ByFloat {
    typedef float OfBlock;
    enum : bool { may_round = !multiplies, finds_middles = 0 };
    ByFloat(const float* own, u64) : factors(own) {}
    GPUCAST_INLINE float operator[](u64 i) const { return factors[i]; }
    template <typename Element>
    static GPUCAST_INLINE u32 quotient(float x, float by) {
        return ptx::bits(multiplies ? x * by : x / by);
    }
    const float* const factors;
};

// A number of 28 bits. A division of each number would take longer than all the rest: the product with the reciprocal tells the
// nearest middle, and what is left on which side of it the quotient is.
struct ByReciprocal : Reciprocals {
    typedef double OfBlock;
    enum : bool { may_round = 0, finds_middles = 1 };
    ByReciprocal(const double* own, u64 n) {
        for (u64 i = 0; i < n; ++i) take(i, own[i]);
    }
    template <typename Element>
    static GPUCAST_INLINE u32 quotient(float x, const One& by) {
        const float a = ptx::abs(x) * by.power;
        const u32 middle = (ptx::bits(a * by.reciprocal) + Middles<Element>::unit / 2) & ~u32(Middles<Element>::last);
        const float rest = rest_of_quotient(a, ptx::as_float(middle), by);
        return (middle + u32(rest > 0) - u32(rest < 0)) | (ptx::bits(x) & 0x80000000);
    }
};

#if GPUCAST_TABLE_BYTES == 64
typedef u16 HalfPairs __attribute__((vector_size(32)));
typedef u64 WidePairs __attribute__((vector_size(64)));

// 32 quotients: the first and the second half of them, or those of even and of odd places.
struct QuotientLanes {
    WideNumbers first, second;
};

template <typename Vector>
GPUCAST_INLINE Vector wide(const void* from) {
    Vector d;
    __builtin_memcpy(&d, from, sizeof d);
    return d;
}

// Which factors 32 elements have: one for all, two for 16 each, or each its own.
enum class Factors { one, two, each };

// Whether numbers are brought to lanes by their places, even or odd, which takes fewer instructions.
template <typename Src, Factors factors>
GPUCAST_CONSTANT bool is_interleaved() {
    return is_upper_half<Src>() && factors != Factors::each;
}

// Finite numbers.
template <typename Src, Factors factors>
GPUCAST_INLINE QuotientLanes numbers_of(const Stored<Src>* src) {
    if constexpr (is_interleaved<Src, factors>()) {
        const WideCodes x = wide<WideCodes>(src);
        return {WideNumbers(x << 16), WideNumbers(x & 0xffff0000)};
    } else if constexpr (Src::bits == 32) {
        return {wide<WideNumbers>(src), wide<WideNumbers>(src + lanes / 2)};
    } else if constexpr (is_upper_half<Src>()) {
        HalfPairs x[2];
        __builtin_memcpy(x, src, sizeof x);
        return {WideNumbers(__builtin_convertvector(x[0], WideCodes) << 16), WideNumbers(__builtin_convertvector(x[1], WideCodes) << 16)};
    } else {
        ptx::Halves x[2];
        __builtin_memcpy(x, src, sizeof x);
        return {ptx::floats_of_halves(x[0]), ptx::floats_of_halves(x[1])};
    }
}

// The upper or lower halves of words, in the order of the numbers that `numbers_of` gave.
template <typename Src, Factors factors, bool are_upper>
GPUCAST_INLINE BytePairs halves_of(WideCodes a, WideCodes b) {
    if constexpr (is_interleaved<Src, factors>()) {
        return BytePairs(are_upper ? (b & 0xffff0000) | a >> 16 : b << 16 | (a & 0xffff));
    } else {
        BytePairs places;
        for (u32 i = 0; i < lanes; ++i) places[i] = u16(2 * i + are_upper);
        return gathered_words(places, BytePairs(a), BytePairs(b));
    }
}

// The upper halves of quotients, rounded to odd.
template <typename Src, Factors factors>
GPUCAST_INLINE BytePairs odd_halves(QuotientLanes q) {
    const BytePairs upper = halves_of<Src, factors, true>(WideCodes(q.first), WideCodes(q.second));
    return halves_of<Src, factors, false>(WideCodes(q.first), WideCodes(q.second)) != 0 ? upper | 1 : upper;
}

typedef short SignedPairs __attribute__((vector_size(64)));

// What is not below `least` and not above `most`. Of choices compilers do not always make the instructions that do so.
GPUCAST_INLINE SignedPairs inside(SignedPairs a, SignedPairs least, SignedPairs most) {
    asm("vpmaxsw %1, %0, %0" : "+v"(a) : "v"(least));
    asm("vpminsw %1, %0, %0" : "+v"(a) : "v"(most));
    return a;
}
GPUCAST_INLINE WideNumbers inside(WideNumbers a, WideNumbers least, WideNumbers most) {
    asm("vmaxps %1, %0, %0" : "+v"(a) : "v"(least));
    asm("vminps %1, %0, %0" : "+v"(a) : "v"(most));
    return a;
}

// Of numbers of which only the sign counts, as all are 0 or normal: `unit`, 0 or -unit, of at most 64.
template <typename Src, Factors factors>
GPUCAST_INLINE SignedPairs signs_of(QuotientLanes x, short unit = 1) {
    return inside(SignedPairs(halves_of<Src, factors, true>(WideCodes(x.first), WideCodes(x.second))), SignedPairs{} - unit, SignedPairs{} + unit);
}

// What 32 elements have of their blocks, from the first on.
template <typename Src, Factors factors>
GPUCAST_INLINE QuotientLanes lanes_of(const float* of) {
    if constexpr (factors == Factors::two && is_interleaved<Src, factors>()) {
        // The first half of the numbers of each place are those of the first block.
        WideCodes choice, pair = WideCodes(WidePairs{} + wide<u64>(of));
        for (u32 i = 0; i < lanes / 2; ++i) choice[i] = i >= lanes / 4;
        asm("vpermilps %1, %0, %0" : "+v"(pair) : "v"(choice));
        return {WideNumbers(pair), WideNumbers(pair)};
    }
    if constexpr (factors == Factors::each) return {wide<WideNumbers>(of), wide<WideNumbers>(of + lanes / 2)};
    // A sum with 0 would be another number for some.
    else return {of[0] - WideNumbers{}, of[factors == Factors::two] - WideNumbers{}};
}

// x - a * b, rounded once.
GPUCAST_INLINE QuotientLanes less_products(QuotientLanes x, QuotientLanes a, QuotientLanes b) {
    asm("vfnmadd231ps %2, %1, %0" : "+v"(x.first) : "v"(a.first), "v"(b.first));
    asm("vfnmadd231ps %2, %1, %0" : "+v"(x.second) : "v"(a.second), "v"(b.second));
    return x;
}

// The codes of the upper halves of FLOATs.
template <typename Element, typename Rule, bool are_few>
struct Codes {
    GPUCAST_INLINE BytePairs operator()(BytePairs halves) const { return narrowed<UpperHalf, Element, Rule, false>(halves); }
};
// Of so few numbers that a table in two registers has all middles, and what lies between them, in their order: from one eighth on,
// where all become zero, below 32.
template <typename Element, typename Rule>
struct Codes<Element, Rule, true> {
    enum : u32 { first = 124 << 7, unit = Middles<Element>::unit >> 17 };
    Codes() {
        for (u32 half = 0; half < 2; ++half) {
            for (u32 i = 0; i < lanes; ++i) table[half][i] = u16(first + (half * lanes + i) * unit);
            table[half] = narrowed<UpperHalf, Element, Rule, false>(table[half]);
        }
    }
    GPUCAST_INLINE BytePairs operator()(BytePairs halves) const {
        const BytePairs place = least(most(halves & 0x7fff, every(first)) - u16(first), every(63 * unit)) / u16(unit);
        return gathered_words(place, table[0], table[1]) | (halves >> (16 - Element::bits) & u16(Element::sign_code));
    }
    BytePairs table[2];
};

// The same as `quotient` of ByFloat and ByReciprocal: the upper halves of FLOATs on the same side of all midpoints as
// the quotients.
template <typename Src, Factors factors, bool multiplies>
struct ByFloats {
    ByFloats(const ByFloat<multiplies>& all, u64 i) : by(lanes_of<Src, factors>(all.factors + i)) {}
    template <typename Element>
    GPUCAST_INLINE BytePairs halves(QuotientLanes x) const {
        if constexpr (multiplies) return odd_halves<Src, factors>({x.first * by.first, x.second * by.second});
        else return odd_halves<Src, factors>({x.first / by.first, x.second / by.second});
    }
    QuotientLanes by;
};

template <typename Src, Factors factors>
struct ByReciprocals {
    ByReciprocals(const Reciprocals& all, u64 i)
        : power(lanes_of<Src, factors>(all.power + i)), reciprocal(lanes_of<Src, factors>(all.reciprocal + i)),
          upper(lanes_of<Src, factors>(all.upper + i)), lower(lanes_of<Src, factors>(all.lower + i)) {}
    template <typename Element>
    GPUCAST_INLINE BytePairs halves(QuotientLanes x) const {
        const QuotientLanes a = {x.first * power.first, x.second * power.second};
        const auto middle = [](WideNumbers q) { return WideNumbers((WideCodes(q) + Middles<Element>::unit / 2) & ~u32(Middles<Element>::last)); };
        const QuotientLanes near = {middle(a.first * reciprocal.first), middle(a.second * reciprocal.second)};
        const SignedPairs half = SignedPairs(halves_of<Src, factors, true>(WideCodes(near.first), WideCodes(near.second))), negative = half >> 15;
        // To the midst of two, which is as good.
        const SignedPairs above = signs_of<Src, factors>(less_products(less_products(a, near, upper), near, lower), Middles<Element>::unit >> 17);
        return BytePairs(half + ((above ^ negative) - negative));
    }
    QuotientLanes power, reciprocal, upper, lower;
};

template <typename Src, Factors factors, bool multiplies>
ByFloats<Src, factors, multiplies> in_lanes(const ByFloat<multiplies>& all, u64 i) {
    return {all, i};
}
template <typename Src, Factors factors>
ByReciprocals<Src, factors> in_lanes(const Reciprocals& all, u64 i) {
    return {all, i};
}

// The codes of 32 quotients or more, of the elements of the blocks from `first` on.
template <typename Src, typename Element, Factors factors, typename Division, typename Codes>
GPUCAST_INLINE void find_codes_in_lanes(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, const Division& all, u64 first,
                                        const Codes& codes) {
    auto by = in_lanes<Src, factors>(all, first);
    for (u64 i = 0;; i += lanes) {
        // The last ones end with the block: some are computed twice.
        if (n - i < lanes) i = n - lanes;
        if constexpr (factors == Factors::each) by = in_lanes<Src, factors>(all, first + i);
        const BytePairs results = codes(by.template halves<Element>(numbers_of<Src, factors>(src + i)));
        const HalfBytes bytes = __builtin_convertvector(results, HalfBytes);
        __builtin_memcpy(dst + i, &bytes, sizeof bytes);
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
        Together(OfBlock* own, u64 n) : by(own, n) {}
        GPUCAST_INLINE void row(const Source* src, u8* dst, u64 n, void* more) { find_codes<true>(src, dst, n, *this, 0, more); }
        GPUCAST_INLINE void adjacent(const Source* src, u8* dst, u64 count, u64 length, void* more) {
            u64 i = 0;
#if GPUCAST_TABLE_BYTES == 64
            if constexpr (takes_adjacent) {
                if (length == shorter_block && !rounds(more)) {
                    for (; i + 2 <= count; i += 2) {
                        find_codes_in_lanes<Src, Element, Factors::two>(src + i * length, dst + i * length, lanes, by, i, codes);
                    }
                }
            }
#endif
            const auto find_rest = [&](u64 n) __attribute__((always_inline)) {
                for (; i < count; ++i) find_codes<false>(src + i * n, dst + i * n, n, *this, i, more);
            };
            // With a loop of its own for the usual length.
            if (length == short_block) find_rest(short_block);
            else find_rest(length);
        }
        const Division by;
#if GPUCAST_TABLE_BYTES == 64
        const Codes<Element, Rule, takes_adjacent && is_float4<Element>() && Division::finds_middles> codes = {};
#endif
    };

   private:
    // Quotients of FLOAT that are rounded to the source once more.
    static GPUCAST_INLINE bool rounds(const void* more) {
        return Src::bits == 16 && is_e4m3<Element>() && Division::may_round && more && static_cast<const Integers*>(more)->rounds;
    }

    template <bool is_each>
    static GPUCAST_INLINE void find_codes(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, const Together& of, u64 first, void* more) {
        const Division& by = of.by;
        const auto one = by[first];
        if (rounds(more)) {
            for (u64 i = 0; i < n; ++i) {
                const float q = ptx::as_float(by.template quotient<Element>(number<Src>(src[i]), is_each ? by[first + i] : one));
                dst[i] = quotient_code<Element, Rule>(ptx::bits(rounded<Src>(q)));
            }
            return;
        }
#if GPUCAST_TABLE_BYTES == 64
        if constexpr (narrows<FLOAT, Element, Rule>()) {
            if (n >= lanes) {
                find_codes_in_lanes<Src, Element, is_each ? Factors::each : Factors::one>(src, dst, n, of.by, first, of.codes);
                return;
            }
        }
#endif
        for (u64 i = 0; i < n; ++i) {
            dst[i] = quotient_code<Element, Rule>(by.template quotient<Element>(number<Src>(src[i]), is_each ? by[first + i] : one));
        }
    }
};

template <typename Src, typename Element, typename Rule>
struct Divided : Quotient<Src, Element, Rule, ByFloat<false>> {};
template <typename Src, typename Element, typename Rule>
struct Multiplied : Quotient<Src, Element, Rule, ByFloat<true>> {};
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
            for (u64 i = 0; i < n; ++i) d[i] = own[i].d, zero[i] = own[i].zero, by.take(i, double(own[i].d));
        }
        GPUCAST_INLINE void row(const Source* src, u8* dst, u64 n, void* more) {
            find_codes<true>(src, dst, n, *this, 0, *static_cast<const Integers*>(more));
        }
        GPUCAST_INLINE void adjacent(const Source* src, u8* dst, u64 count, u64 length, void* more) {
            const Integers to = *static_cast<const Integers*>(more);
            const auto find = [&](u64 n) __attribute__((always_inline)) {
                for (u64 i = 0; i < count; ++i) find_codes<false>(src + i * n, dst + i * n, n, *this, i, to);
            };
            // With a loop of its own for the usual length.
            if (length == short_block) find(short_block);
            else find(length);
        }
        Reciprocals by;
        alignas(64) float d[long_block];
        alignas(64) i32 zero[long_block];
    };

   private:
    enum class Way { reciprocals, products, quotients, rounded_products, rounded_quotients };

    // Compilers make vector instructions of loops without choices that are the same for all elements.
    template <bool is_each>
    static GPUCAST_INLINE void find_codes(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, const Together& of, u64 first, Integers to) {
        if (!to.in_float) {
            round_all<is_each, Way::reciprocals>(src, dst, n, of, first, to);
        } else if (Src::bits == 16 && to.rounds) {
            if (to.products) round_all<is_each, Way::rounded_products>(src, dst, n, of, first, to);
            else round_all<is_each, Way::rounded_quotients>(src, dst, n, of, first, to);
        } else {
            if (to.products) round_all<is_each, Way::products>(src, dst, n, of, first, to);
            else round_all<is_each, Way::quotients>(src, dst, n, of, first, to);
        }
    }

    // Adding a number whose ULP is 1/2, and subtracting it again, rounds to multiples of 1/2. With a quarter more or less, if something
    // is left, these are rounded to integers, ties to even. Quotients beyond 2^12 are beyond all codes.
    template <bool is_each, Way way>
    static GPUCAST_INLINE void round_all(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, const Together& of, u64 first, Integers to) {
        const bool divides = way == Way::quotients || way == Way::rounded_quotients, rounds = way == Way::rounded_products || way == Way::rounded_quotients;
        const float large = 0x1.8p22f, beyond = 0x1p12f;
#if GPUCAST_TABLE_BYTES == 64
        constexpr Factors each = is_each ? Factors::each : Factors::one;
        const SignedPairs least = SignedPairs{} + short(to.least), most = SignedPairs{} + short(to.most);
        for (u64 i = 0; !rounds && n >= lanes; i += lanes) {
            // The last ones end with the block: some are computed twice.
            if (n - i < lanes) i = n - lanes;
            const u64 at = first + (is_each ? i : 0);
            QuotientLanes x = numbers_of<Src, each>(src + i), q = x, d = lanes_of<Src, each>(of.d + at);
            if (way == Way::reciprocals) {
                const QuotientLanes power = lanes_of<Src, each>(of.by.power + at), factor = lanes_of<Src, each>(of.by.reciprocal + at);
                x = {x.first * power.first, x.second * power.second}, q = {x.first * factor.first, x.second * factor.second};
            } else {
                q = x = divides ? QuotientLanes{x.first / d.first, x.second / d.second} : QuotientLanes{x.first * d.first, x.second * d.second};
            }
            const WideNumbers limit = WideNumbers{} + beyond;
            const QuotientLanes sum = {inside(q.first, -limit, limit) + large, inside(q.second, -limit, limit) + large};
            const QuotientLanes near = {sum.first - large, sum.second - large};
            QuotientLanes rest = {x.first - near.first, x.second - near.second};
            if (way == Way::reciprocals) rest = less_products(x, near, lanes_of<Src, each>(of.by.upper + at));
            const SignedPairs twice = SignedPairs(halves_of<Src, each, false>(WideCodes(sum.first), WideCodes(sum.second)));
            const SignedPairs quarters = twice + twice + signs_of<Src, each>(rest);
            SignedPairs code = (quarters + 1 + ((quarters >> 2) & 1)) >> 2;
            if (is_each) {
                code += SignedPairs(halves_of<Src, each, false>(wide<WideCodes>(of.zero + at), wide<WideCodes>(of.zero + at + lanes / 2)));
            } else {
                code += short(of.zero[at]);
            }
            const HalfBytes bytes = __builtin_convertvector(BytePairs(inside(code, least, most)), HalfBytes) & u8(to.mask);
            __builtin_memcpy(dst + i, &bytes, sizeof bytes);
            if (i + lanes >= n) return;
        }
#endif
        const Reciprocals::One one = of.by[first];
        const float one_d = of.d[first];
        const i32 one_zero = of.zero[first];
        for (u64 i = 0; i < n; ++i) {
            const Reciprocals::One by = is_each ? of.by[first + i] : one;
            const float given = number<Src>(src[i]), d = is_each ? of.d[first + i] : one_d;
            const float x = way == Way::reciprocals ? given * by.power : divides ? given / d : given * d;
            const float q = way == Way::reciprocals ? x * by.reciprocal : rounds ? rounded<Src>(x) : x;
            // Larger ones have larger sums, whose codes are larger.
            const float near = (q > -beyond ? q : -beyond) + large - large, rest = way == Way::reciprocals ? fused(-near, by.upper, x) : q - near;
            const u32 quarter = (rest != 0 ? ptx::bits(0.25f) : 0) | (ptx::bits(rest) & 0x80000000);
            const float sum = near + ptx::as_float(quarter) + 2 * large;
            dst[i] = integer_code(i32(ptx::bits(sum) - ptx::bits(2 * large)) + (is_each ? of.zero[first + i] : one_zero), to);
        }
    }
};

}  // namespace gpucast
