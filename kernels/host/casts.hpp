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

// Casts n elements.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_directly(const Stored<Src>* __restrict__ src, Stored<Dst>* __restrict__ dst, u64 n) {
    for (u64 i = 0; i < n; ++i) dst[i] = Stored<Dst>(cast_code<Src, Dst>(WordFor<Src, Dst>(src[i]), Rule()));
}

// Whether the casts of all codes are computed first, and then looked up: where a rule without a fast path takes longer.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool looks_up() {
    return sizeof(Stored<Src>) == 1 && (Src::is_float || Src::is_e8m0) && !Dst::is_bool;
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_array(const void* from, void* to, u64 n) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* __restrict__ dst = static_cast<Stored<Dst>*>(to);
    if constexpr (looks_up<Src, Dst>()) {
        if (n > 512) {
            Stored<Src> codes[256];
            Stored<Dst> table[256];
            for (u32 i = 0; i < 256; ++i) codes[i] = Stored<Src>(i);
            cast_directly<Src, Dst, Rule>(codes, table, 256);
            for (u64 i = 0; i < n; ++i) dst[i] = table[src[i]];
            return;
        }
    }
    cast_directly<Src, Dst, Rule>(src, dst, n);
}

// Casts n elements among floats of 32 bits or fewer, n below 2^32. stats: the largest magnitude of a result as a code,
// at least that of the largest number where a source is infinite or NaN; how many results are zero, unless a source is
// NaN; how many sources are zero.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_counted(const void* from, void* to, u64 n, u32* stats) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* __restrict__ dst = static_cast<Stored<Dst>*>(to);
    u32 top = 0, zeros = 0, source_top = 0, source_least = ~u32(0);
    for (u64 i = 0; i < n; ++i) {
        const u32 code = cast_code<Src, Dst>(u32(src[i]), Rule());
        dst[i] = Stored<Dst>(code);
        u32 magnitude = code & u32(Dst::mask ^ Dst::sign_code);
        // Only its sign distinguishes this NaN from zero.
        if constexpr (Dst::has_nan && !Dst::nan_is_signed) magnitude = code == u32(Dst::nan_code) ? code : magnitude;
        const u32 source = src[i] & u32(Src::mask ^ Src::sign_code);
        top = top > magnitude ? top : magnitude;
        zeros += magnitude == 0;
        source_top = source_top > source ? source_top : source;
        source_least = source_least < source ? source_least : source;
    }
    // Sources that are zero are rare in most files, so that a second look at all of them is, too.
    u32 source_zeros = 0;
    if (source_least == 0) {
        for (u64 i = 0; i < n; ++i) source_zeros += (src[i] & u32(Src::mask ^ Src::sign_code)) == 0;
    }
    if (source_top > u32(Src::max_code) && top < u32(Dst::max_code)) top = u32(Dst::max_code);
    stats[0] = top;
    stats[1] = zeros;
    stats[2] = source_zeros;
}

}  // namespace gpucast

#define GPUCAST_EXPORT extern "C" __attribute__((visibility("default")))
#define GPUCAST_CAST(NAME, SRC, DST, ...)                                                         \
    GPUCAST_EXPORT void NAME(const void* from, void* to, unsigned long long n) {                  \
        gpucast::cast_array<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n);                \
    }
#define GPUCAST_COUNTED_CAST(NAME, SRC, DST, ...)                                                 \
    GPUCAST_EXPORT void NAME(const void* from, void* to, unsigned long long n, unsigned* stats) { \
        gpucast::cast_counted<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n, stats);       \
    }
