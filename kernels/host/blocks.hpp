// SPDX-License-Identifier: Apache-2.0
// Blocks that share a scale: their extremes, the codes of quotients, and the numbers that codes stand for.
// gpucast/quantization/block_loops.py describes the structs.
namespace gpucast {

typedef int i32;

// As in gpucast/quantization/block_grid.py: an array of three dimensions, each cut into blocks.
struct Blocks {
    u64 shape[3], lengths[3], grid[3];
};

// An array, and the bytes of an element.
struct Array {
    u8* first;
    u64 itemsize;
};

// Works on n adjacent elements in blocks of a length, of the first of which `skip` elements come before; `of` belongs to
// the blocks, `more` to the whole array.
typedef void Run(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more);

// The part of an array that a call works on: some columns of some rows.
struct EachRun {
    Run* run;
    Array src, dst, of;
    void* more;
    Blocks blocks;
    u64 first_row, last_row, first_column, last_column;
};

static int each_run(void* arguments) {
    const EachRun& call = *static_cast<const EachRun*>(arguments);
    const u64 *n = call.blocks.shape, *lengths = call.blocks.lengths, *grid = call.blocks.grid;
    const u64 begin = call.first_column, length = lengths[2];
    for (u64 row = call.first_row; row < call.last_row; ++row) {
        const u64 block = (row / n[1] / lengths[0] * grid[1] + row % n[1] / lengths[1]) * grid[2] + begin / length;
        const u64 at = row * n[2] + begin;
        call.run(call.src.first + at * call.src.itemsize, call.dst.first + at * call.dst.itemsize, call.last_column - begin,
                 begin % length, length, call.of.first + block * call.of.itemsize, call.more);
    }
    return 0;
}

// Lengths of blocks so short that a loop for any length would take longer to start than to run. The shorter one is that
// of two scales.
enum : u64 { short_block = 32, shorter_block = 16 };
// Longer blocks are worked on in pieces, so that the slow case is computed for one piece only.
enum : u64 { long_block = 1024 };

// A Run that calls Work::block for each block, with a loop of its own for short blocks.
template <typename Work>
inline void run_blocks(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const typename Work::Source* __restrict__ src = static_cast<const typename Work::Source*>(from);
    typename Work::Result* __restrict__ dst = static_cast<typename Work::Result*>(to);
    typename Work::OfBlock* own = static_cast<typename Work::OfBlock*>(of);
    u64 next = length - skip;
    for (u64 start = 0; start < n; start = next, next += length, ++own) {
        const u64 end = next < n ? next : n, count = end - start;
        if (count == short_block) {
            Work::block(src + start, dst + start, short_block, own, more);
        } else if (count == Work::least) {
            Work::block(src + start, dst + start, Work::least, own, more);
        } else {
            for (u64 at = start; at < end; at += long_block) {
                const u64 rest = end - at;
                Work::block(src + at, dst + at, rest < long_block ? rest : u64(long_block), own, more);
            }
        }
    }
}

// ---- extremes ----

// The largest magnitude of a block so far, as a code.
template <typename Src>
struct Largest {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef Stored<Src> OfBlock;
    enum : u64 { least = shorter_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* largest, void*) {
        Source top = *largest;
        for (u64 i = 0; i < n; ++i) {
            const Source a = src[i] & Source(Src::mask ^ Src::sign_code);
            top = a > top ? a : top;
        }
        *largest = top;
    }
};

template <u32 Bytes>
struct SignedAs {
    typedef i32 type;
};
template <>
struct SignedAs<2> {
    typedef short type;
};

// The lowest and the largest number of a block so far, as codes, 0 at first. As unsigned integers the codes of negative
// numbers are above the others, by their magnitude; as signed ones below 0.
template <typename Src>
struct Range {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef typename SignedAs<sizeof(Source)>::type Signed;
    struct OfBlock {
        Source lowest;
        Signed largest;
    };
    enum : u64 { least = short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* range, void*) {
        Source lowest = range->lowest;
        Signed largest = range->largest;
        for (u64 i = 0; i < n; ++i) {
            const Source code = src[i];
            const Signed same = Signed(code);
            lowest = code > lowest ? code : lowest;
            largest = same > largest ? same : largest;
        }
        range->lowest = lowest;
        range->largest = largest;
    }
};

// ---- codes of quotients ----

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
    // How many ULPs a quotient can be off, plus one.
    enum : u32 { ulps = 3 };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8* __restrict__ dst, u64 n, OfBlock* d, void*) {
        const double exactly = *d;
        const float by = float(exactly);
        u32 midpoints = !(by >= 0x1p-126f && by <= 0x1.fffffep127f);
        for (u64 i = 0; i < n; ++i) {
            const float x = number<Src>(src[i]);
            const u32 q = ptx::bits(ptx::abs(x) / by);
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

// ---- counts ----

// Counts the numbers beyond their block's limit, the code of a FLOAT. The result is the sum of `short_block` counts: in
// short blocks each position has a count of its own, because adding them up would take longer than the comparisons.
template <typename Src>
struct Beyond {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const u32 OfBlock;
    enum : u64 { least = shorter_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* limit, void* more) {
        const u32 most = *limit;
        u64* __restrict__ counts = static_cast<u64*>(more);
        if (n == short_block) {
            for (u64 i = 0; i < short_block; ++i) counts[i] += ptx::bits(ptx::abs(number<Src>(src[i]))) > most;
            return;
        }
        // Words of 32 bits are counted more quickly.
        const u64 piece = u64(1) << 31;
        for (u64 begin = 0; begin < n; begin += piece) {
            const u64 end = n - begin < piece ? n : begin + piece;
            u32 beyond = 0;
            for (u64 i = begin; i < end; ++i) beyond += ptx::bits(ptx::abs(number<Src>(src[i]))) > most;
            counts[0] += beyond;
        }
    }
};

// Adds to a count how many codes equal their block's zero point.
struct Equal {
    typedef u8 Source;
    typedef u8 Result;
    typedef const u8 OfBlock;
    enum : u64 { least = short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* zero, void* more) {
        const u8 code = *zero;
        u32 equal = 0;
        for (u64 i = 0; i < n; ++i) equal += src[i] == code;
        *static_cast<u64*>(more) += equal;
    }
};

// ---- all kinds of numbers and blocks, in DOUBLE ----

// Adjacent blocks of one length, as each_run has them.
template <typename OfBlock>
struct BlockOf {
    OfBlock* of;
    u64 skip, length;

    // Of the element of that index.
    GPUCAST_INLINE OfBlock& operator[](u64 i) const { return of[(i + skip) / length]; }
};

// Elements that become numbers together: they stay in the first-level cache.
enum : u64 { numbers = 512 };

// The lowest and the largest finite number of a block so far, 0 at first, and whether there is another one.
struct Extremes {
    double lowest, largest;
    u64 is_lost;
};

template <typename Src>
void find_extremes(const void* from, void*, u64 n, u64 skip, u64 length, void* of, void*) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Extremes* own = static_cast<Extremes*>(of);
    const auto merge = [](Extremes* to, double x) {
        const bool is_finite = x - x == 0;
        const double known = is_finite ? x : 0;
        to->lowest = known < to->lowest ? known : to->lowest;
        to->largest = known > to->largest ? known : to->largest;
        to->is_lost |= !is_finite;
    };
    if (length == 1) {
        for (u64 i = 0; i < n; ++i) merge(own + i, number<Src>(src[i]));
        return;
    }
    u64 next = length - skip;
    for (u64 start = 0; start < n; start = next, next += length, ++own) {
        Extremes found = *own;
        for (u64 i = start; i < (next < n ? next : n); ++i) merge(&found, number<Src>(src[i]));
        *own = found;
    }
}

// What divides the numbers of a block, its zero point, and whether all its codes are 0.
struct Divisor {
    double d;
    i32 zero, is_lost;
};

// How quotients become codes: integers, or by a cast from DOUBLE, at random or not. `first` is where the array begins,
// whose elements have the words from those of the block `first_block` on, behind `skip` of them.
struct Quotients {
    CastArray* cast;
    CastAtRandom* cast_at_random;
    const u8* first;
    u64 seed, first_block, skip;
    Integers to;
};

// A quotient, or with `in_float` FLOAT's quotient or product.
template <typename Src, bool in_float>
GPUCAST_INLINE double quotient_of(double x, const Divisor& by, const Quotients& how) {
    // NaN keeps its sign.
    if (by.is_lost || x != x) return by.is_lost ? 0 : x;
    if constexpr (in_float && Src::bits <= 32) {
        const float d = float(by.d), q = how.to.products ? float(x) * d : float(x) / d;
        // The sign of a NaN that arithmetic makes depends on the processor.
        if (q != q) return __builtin_nan("");
        return how.to.rounds ? rounded<Src>(q) : q;
    } else {
        return x / by.d;
    }
}

template <typename Src, bool in_float>
void find_codes(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    u8* __restrict__ dst = static_cast<u8*>(to);
    const BlockOf<const Divisor> block = {static_cast<const Divisor*>(of), skip, length};
    const Quotients& how = *static_cast<const Quotients*>(more);
    const u64 place = u64(static_cast<const u8*>(from) - how.first) / sizeof(*src);
    double q[numbers];
    for (u64 start = 0; start < n; start += numbers) {
        const u64 count = n - start < numbers ? n - start : u64(numbers);
        const auto quotient = [&](u64 i, const Divisor& by) {
            return quotient_of<Src, in_float>(number<Src>(src[start + i]), by, how);
        };
        if (length == 1) {
            for (u64 i = 0; i < count; ++i) q[i] = quotient(i, block.of[start + i]);
        } else {
            for (u64 i = 0; i < count;) {
                const u64 left = length - (start + i + skip) % length, end = i + left < count ? i + left : count;
                const Divisor by = block[start + i];
                for (; i < end; ++i) q[i] = quotient(i, by);
            }
        }
        if (how.cast_at_random) {
            const u64 behind = how.skip + place + start;
            how.cast_at_random(q, dst + start, count, how.seed, how.first_block + behind / 4, behind % 4);
        } else if (how.cast) {
            how.cast(q, dst + start, count);
        } else {
            for (u64 i = 0; i < count; ++i) {
                const double least = -32768, most = 32767, x = q[i] == q[i] ? q[i] : 0;
                const double inside = x > most ? most : x < least ? least : x;
                dst[start + i] = integer_code(i32(ptx::cvt_rni_f64(inside)) + block[start + i].zero, how.to);
            }
        }
    }
}

template <typename Src>
void divide(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    find_codes<Src, false>(from, to, n, skip, length, of, more);
}
template <typename Src>
void step(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    find_codes<Src, true>(from, to, n, skip, length, of, more);
}

// The scales by which a block's largest magnitude becomes 6 or 4, the reciprocal of the global scale, and whether the
// scale by 4 has the smaller error.
struct TwoScales {
    float six, four, factor;
    u32 takes_four;
};

// Where the array begins, its codes by 4, and the number of each code.
struct Choice {
    const u8 *first, *other;
    float value[16];
};

// Replaces the codes by 6 of those blocks that take 4: the rule "4over6".
template <typename Src>
void choose(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    u8* __restrict__ six = static_cast<u8*>(to);
    const Choice& how = *static_cast<const Choice*>(more);
    const u8* four = how.other + u64(static_cast<const u8*>(from) - how.first) / sizeof(*src);
    TwoScales* own = static_cast<TwoScales*>(of);
    u64 next = length - skip;
    for (u64 start = 0; start < n; start = next, next += length, ++own) {
        const u64 end = next < n ? next : n;
        float of_six = 0, of_four = 0;
        for (u64 i = start; i < end; ++i) {
            const float y = float(number<Src>(src[i])) * own->factor;
            const float rest = y - how.value[six[i] & 15] * own->six, other = y - how.value[four[i] & 15] * own->four;
            of_six += rest * rest;
            of_four += other * other;
        }
        own->takes_four = of_four < of_six;
        if (own->takes_four) __builtin_memcpy(six + start, four + start, end - start);
    }
}

// What multiplies the numbers of a block, after its zero point was subtracted.
struct Factor {
    double factor, zero;
};

// How codes become numbers, and numbers results: casts to and from DOUBLE, null where there is nothing to do.
struct Products {
    CastArray *from, *to;
    u64 itemsize;
};

// Dequantizes codes of a byte.
static void multiply(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const u8* src = static_cast<const u8*>(from);
    u8* dst = static_cast<u8*>(to);
    const BlockOf<const Factor> block = {static_cast<const Factor*>(of), skip, length};
    const Products& how = *static_cast<const Products*>(more);
    double x[numbers];
    const double nan = ptx::as_double(DOUBLE::nan_code);
    for (u64 start = 0; start < n; start += numbers) {
        const u64 count = n - start < numbers ? n - start : u64(numbers);
        how.from(src + start, x, count);
        const auto product = [nan](double value, const Factor& by) {
            const double known = value - by.zero, result = known * by.factor;
            return by.factor != by.factor ? nan : value != value ? value : result != result ? nan : result;
        };
        if (length == 1) {
            for (u64 i = 0; i < count; ++i) x[i] = product(x[i], block.of[start + i]);
        } else {
            for (u64 i = 0; i < count;) {
                const u64 left = length - (start + i + skip) % length, end = i + left < count ? i + left : count;
                const Factor by = block[start + i];
                for (; i < end; ++i) x[i] = product(x[i], by);
            }
        }
        if (how.to) how.to(x, dst + start * how.itemsize, count);
        else __builtin_memcpy(dst + start * how.itemsize, x, count * sizeof *x);
    }
}

}  // namespace gpucast

#define GPUCAST_RUN(NAME, ...)                                                                                    \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned long long skip,                   \
                     unsigned long long length, void* of, void* more) {                                           \
        gpucast::run_blocks<gpucast::__VA_ARGS__>(from, to, n, skip, length, of, more);                           \
    }
#define GPUCAST_RUN_OF(NAME, FUNCTION, SRC)                                                                       \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned long long skip,                   \
                     unsigned long long length, void* of, void* more) {                                           \
        gpucast::FUNCTION<gpucast::SRC>(from, to, n, skip, length, of, more);                                     \
    }
