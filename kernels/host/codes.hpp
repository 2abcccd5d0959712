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

// The codes of finite numbers divided by their block's `d`.
template <typename Src, typename Element, typename Rule>
__attribute__((noinline)) void divide_exactly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, double d) {
    for (u64 i = 0; i < n; ++i) {
        const float x = number<Src>(src[i]);
        dst[i] = quotient_code<Element, Rule>(x, odd_quotient(ptx::abs(x), d));
    }
}

// The bits of a quotient's code that are 0 where it may be a midpoint of two codes, which has two significant bits more
// than their mantissa. The bit above them is set then, except in subnormal codes.
template <typename Element>
GPUCAST_CONSTANT u32 midpoint_zeros() {
    return (1u << (22 - int(Element::mantissa_bits))) - 1;
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

// By a `d` that is a FLOAT. With `more` the quotients are those of FLOAT, so that there is nothing to correct.
template <typename Src, typename Element, typename Rule>
struct Divided {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef float OfBlock;
    enum : u64 { least = is_float4<Element>() ? shorter_block : short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, void* more) {
        const u32 zeros = midpoint_zeros<Element>(), least_normal = u32(128 - Element::bias) << 23;
        const float by = *d;
        u32 midpoints = 0;
        if constexpr (Src::bits == 16 && is_e4m3<Element>()) {
            if (more && static_cast<const Integers*>(more)->rounds) {
                for (u64 i = 0; i < n; ++i) {
                    const float x = number<Src>(src[i]);
                    dst[i] = quotient_code<Element, Rule>(x, ptx::bits(rounded<Src>(ptx::abs(x) / by)));
                }
                return;
            }
        }
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]);
            const u32 q = ptx::bits(ptx::abs(x) / by);
            dst[i] = quotient_code<Element, Rule>(x, q);
            midpoints |= u32((q & zeros) == 0) & u32(q != 0) & (u32((q & (zeros + 1)) != 0) | u32(q < least_normal));
        }
        if (midpoints && !more) divide_exactly<Src, Element, Rule>(src, dst, n, by);
    }
};

// By a power of two, whose reciprocal is here, or times a FLOAT.
template <typename Src, typename Element, typename Rule>
struct Multiplied {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef float OfBlock;
    enum : u64 { least = is_float4<Element>() ? shorter_block : short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* factor, void*) {
        const float by = *factor;
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]);
            dst[i] = quotient_code<Element, Rule>(x, ptx::bits(ptx::abs(x) * by));
        }
    }
};

// By a `d` that has to be rounded to FLOAT.
template <typename Src, typename Element, typename Rule>
struct Near {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef double OfBlock;
    enum : u64 { least = shorter_block };
    // How many ULPs a quotient can be off, plus one: the divisor, its reciprocal and the product are rounded, each by half of
    // one at most, or by one where the quotient has the smaller significand.
    enum : u32 { ulps = 4 };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, void*) {
        const double exactly = *d;
        const float by = float(exactly);
        // Of others the reciprocal is no normal FLOAT.
        u32 midpoints = !(by >= 0x1p-126f && by <= 0x1p126f);
        // A division of each would take longer than all the rest.
        const float reciprocal = 1 / by;
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]);
            const u32 q = ptx::bits(ptx::abs(x) * reciprocal);
            dst[i] = quotient_code<Element, Rule>(x, q);
            midpoints |= u32(((q + ulps) & midpoint_zeros<Element>()) <= 2 * ulps) & u32(q != 0);
        }
        if (midpoints) divide_exactly<Src, Element, Rule>(src, dst, n, exactly);
    }
};

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
template <typename Src>
__attribute__((noinline)) void divide_wholly(const Stored<Src>* __restrict__ src, u8* __restrict__ dst, u64 n, Step step, Integers to) {
    const double large = 0x1.8p52;
    for (u64 i = 0; i < n; ++i) {
        const double q = double(number<Src>(src[i])) / double(step.d);
        dst[i] = integer_code(i32(q + large - large) + step.zero, to);
    }
}

template <typename Src>
struct Whole {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const Step OfBlock;
    enum : u64 { least = short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* step, void* more) {
        const Integers to = *static_cast<const Integers*>(more);
        const float by = step->d, large = 0x1.8p23f;
        const i32 zero = step->zero;
        u32 midpoints = 0;
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]), own = to.products ? x * by : x / by;
            const float q = Src::bits == 16 && to.rounds ? rounded<Src>(own) : own;
            const float whole = q + large - large, rest = q - whole;
            dst[i] = integer_code(i32(whole) + zero, to);
            midpoints |= u32(rest == 0.5f) | u32(rest == -0.5f);
        }
        if (midpoints && !to.in_float) divide_wholly<Src>(src, dst, n, *step, to);
    }
};

}  // namespace gpucast
