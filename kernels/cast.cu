// SPDX-License-Identifier: Apache-2.0
// The kernels: which elements a thread casts. source.py adds the rows of a pair and one line that names its kernel.
namespace gpucast {

// ---- one element ----

template <typename Src, typename Dst, typename Word, typename R, typename SrcFamily, typename DstFamily>
GPUCAST_INLINE Word convert(Word code, R rule, SrcFamily source, DstFamily destination) {
    return encode<Dst>(decode<Src>(code, source), rule, destination);
}

// Same type: the code itself.
template <typename Row, typename Word, typename R, typename Family>
GPUCAST_INLINE Word cast_same(Word code, R, Family) {
    return code & Word(Row::mask);
}

// BOOL has one code for true: any other that is not zero becomes it.
template <typename Row, typename Word, typename R>
GPUCAST_INLINE Word cast_same(Word code, R rule, BoolFamily family) {
    return convert<Row, Row>(code, rule, family, family);
}

template <typename Src, typename Dst>
struct Cast {
    template <typename Word, typename R>
    static GPUCAST_INLINE Word apply(Word code, R rule) {
        return convert<Src, Dst>(code, rule, typename Src::family(), typename Dst::family());
    }
};
template <typename Row>
struct Cast<Row, Row> {
    template <typename Word, typename R>
    static GPUCAST_INLINE Word apply(Word code, R rule) {
        return cast_same<Row>(code, rule, typename Row::family());
    }
};

// ---- contiguous to contiguous ----

// One thread casts a tile of `Elements` elements. The destination's tiles are aligned, so that the first one may begin
// before the array. A tile wholly inside is moved by vectors; those at the two ends go element by element.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, u32 Threads, typename R>
GPUCAST_INLINE void cast_contiguous(const u8* src, u32 src_bit, u8* dst, i64 n, R rule) {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    typedef Tile<Elements * SrcBits / 8> SrcTile;
    typedef Tile<Elements * Dst::bits / 8> DstTile;
    const Head head = elements_before<Dst::bits, DstTile::piece>(dst);
    const u32 missing = head.elements == 0 ? 0 : Elements - head.elements;
    const i64 begin = i64(blockIdx.x) * (Threads * Elements) + threadIdx.x * Elements - missing;
    // In the source every tile begins at the same bit, and at the same distance from an aligned address.
    const i64 src_begin = i64(src_bit) + begin * SrcBits;
    const u8* from = src + (src_begin >> 3);
    const u32 bit = u32(src_begin) & 7;
    const bool straight = bit == 0 && (address(from) & (SrcTile::piece - 1)) == 0;
    // Elements on either side that the shifted load may touch.
    const i64 margin = straight ? 0 : (64 + SrcBits - 1) / SrcBits;

    if (head.reachable && begin >= margin && begin + Elements + margin <= n) {
        SrcTile in;
        DstTile out = {};
        if (straight) {
            load_aligned(from, in);
        } else {
            load_shifted(from, bit, in);
        }
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) {
            put<Dst::bits>(out, i, Cast<Src, Dst>::apply(get<SrcBits, Word>(in, i), rule));
        }
        store_aligned(dst + (begin * i64(Dst::bits) >> 3), out);
    } else {
        const i64 first = begin > 0 ? begin : 0, last = begin + Elements < n ? begin + Elements : n;
        Writer<Dst::bits, Word> writer = {dst + (first * i64(Dst::bits) >> 3), 0, 0};
#pragma unroll 1
        for (i64 i = first; i < last; ++i) {
            const Word code = read_element<SrcBits, Word>(src, src_bit + u64(i) * SrcBits);
            writer.put(Cast<Src, Dst>::apply(code, rule));
        }
        writer.finish();
    }
}

// ---- any strides ----

// One thread casts the elements that fill whole bytes of the destination together, so that no two threads write to one
// byte. A packed side has no strides: it is the row-major stream.
template <typename Src, typename Dst, u32 SrcBits, u32 Threads, u32 MaxDims, typename R>
GPUCAST_INLINE void cast_strided(
    const u8* src, u32 src_bit, u8* dst, i64 n, const Dims<MaxDims>& dims, R rule) {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    const u32 group = Unit<Dst::bits>::elements;
    const i64 first = (i64(blockIdx.x) * Threads + threadIdx.x) * group;
    const i64 last = first + group < n ? first + group : n;
    Writer<Dst::bits, Word> writer = {dst + (first * i64(Dst::bits) >> 3), 0, 0};
#pragma unroll 1
    for (i64 i = first; i < last; ++i) {
        const Offsets at = n >> 32 ? offsets(dims, u64(i)) : offsets(dims, u32(i));
        Word code;
        if constexpr (SrcBits < 8) {
            code = read_element<SrcBits, Word>(src, src_bit + u64(i) * SrcBits);
        } else {
            code = load_element<SrcBits, Word>(src + at.src);
        }
        code = Cast<Src, Dst>::apply(code, rule);
        if constexpr (Dst::bits < 8) {
            writer.put(code);
        } else {
            store_element<Dst::bits>(dst + at.dst, code);
        }
    }
    if constexpr (Dst::bits < 8) writer.finish();
}

}  // namespace gpucast

// The options of the rule come last.
#define GPUCAST_CONTIGUOUS(NAME, SRC, DST, SRC_BITS, ELEMENTS, THREADS, ...)                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n) {                         \
        gpucast::cast_contiguous<gpucast::SRC, gpucast::DST, SRC_BITS, ELEMENTS, THREADS>(                             \
            src, src_bit, dst, n, gpucast::Rule<__VA_ARGS__>());                                                       \
    }
#define GPUCAST_STRIDED(NAME, SRC, DST, SRC_BITS, MAX_DIMS, THREADS, ...)                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::Dims<MAX_DIMS> dims) {                                                   \
        gpucast::cast_strided<gpucast::SRC, gpucast::DST, SRC_BITS, THREADS>(                                          \
            src, src_bit, dst, n, dims, gpucast::Rule<__VA_ARGS__>());                                                 \
    }
