// SPDX-License-Identifier: Apache-2.0
// Casts of flat arrays of codes, one element after the other. The loops are plain, so that compilers make vector
// instructions of them; where these would take longer than memory does, others stand before them.
namespace gpucast {

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

// The same, where the processor has the table in registers.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool looks_up_in_registers() {
    if (!GPUCAST_TABLE_BYTES) return false;
    return looks_up<Src, Dst>() || (sizeof(Stored<Src>) == 1 && Src::is_int && (Dst::is_float || Dst::is_e8m0));
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
static void cast_part(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n, bool is_past = false);

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
static __attribute__((noinline)) void cast_part(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n,
                                                [[maybe_unused]] bool is_past) {
    if constexpr (narrows<Src, Dst, Rule>()) {
        if (n >= lanes) {
            cast_narrow<Src, Dst, Rule>(src, dst, n, is_past);
            return;
        }
    }
    if constexpr (has_instructions<Src>()) {
        cast_halves<Dst, Rule>(src, dst, n);
        return;
    }
    if constexpr (looks_up<Src, Dst>() || looks_up_in_registers<Src, Dst>()) {
        if (n > block) {
            Stored<Src> codes[256];
            Stored<Dst> table[256];
            for (u32 i = 0; i < 256; ++i) codes[i] = Stored<Src>(i);
            cast_directly<Src, Dst, Rule>(codes, table, 256);
            if (look_up(src, dst, n, table, is_past)) return;
            if constexpr (looks_up<Src, Dst>()) {
                // A shorter loop takes twice as long at some addresses.
#pragma GCC unroll 4
                for (u64 i = 0; i < n; ++i) dst[i] = table[src[i]];
                return;
            }
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
// NumPy's do, each wide vector would take two lines. That of the wider elements counts, which has more vectors, or that of the
// results where they are written past the caches.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_array(const void* from, void* to, u64 n) {
    const Stored<Src>* src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* dst = static_cast<Stored<Dst>*>(to);
    constexpr bool can_pass = narrows<Src, Dst, Rule>() || looks_up<Src, Dst>() || looks_up_in_registers<Src, Dst>();
    const bool is_past = can_pass && (n & past_caches) != 0;
    n &= ~past_caches;
    const u64 head = n > many ? sizeof(*src) > sizeof(*dst) && !is_past ? before_line(src) : before_line(dst) : 0;
    if (head) cast_part<Src, Dst, Rule>(src, dst, head);
    cast_part<Src, Dst, Rule>(src + head, dst + head, n - head, is_past && n > many);
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
