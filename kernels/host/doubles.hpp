// SPDX-License-Identifier: Apache-2.0
// Blocks of any length and of all kinds of numbers: their extremes, and the codes of their quotients, in DOUBLE.
namespace gpucast {

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
            each_block(block, start, count, [&](u64 i, u64 end, const Divisor& by) {
                for (const Divisor own = by; i < end; ++i) q[i] = quotient(i, own);
            });
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

}  // namespace gpucast
