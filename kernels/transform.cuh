// SPDX-License-Identifier: Apache-2.0
// The numbers of a thread for hadamard.cu, transformed or as they are.
namespace gpucast {

// ---- the transform ----

// Numbers of a thread; threads of the blocks whose warps have parts of runs.
enum : u32 { part_size = 16, part_threads = 256 };

// 1 / sqrt(Length), rounded.
template <u32 Length>
GPUCAST_CONSTANT u32 transform_factor() {
    return Length == 16 ? 0x3e800000 : Length == 32 ? 0x3e3504f3 : Length == 64 ? 0x3e000000 : 0x3db504f3;
}
// Parts of a run.
template <u32 Length>
GPUCAST_CONSTANT u32 parts_of() {
    return Length < part_size ? 1 : Length / part_size;
}

// Whether two FLOATs at a time are summed.
enum : bool { sums_in_pairs = GPUCAST_ARCH >= 1000 };

// Sums and differences of the numbers i and i + h of each `Size`, for h from 1 on.
template <u32 Size>
GPUCAST_INLINE void add_up(u32 (&x)[part_size]) {
    // Numbers i and i + 1 are summed first, then each is summed with its like: two at a time, where instructions do so.
#pragma unroll
    for (u32 h = 1; h < Size; h *= 2) {
#pragma unroll
        for (u32 i = 0; i < part_size; ++i) {
            if ((i & h) != 0 || (sums_in_pairs && h > 1 && i % 2 != 0)) continue;
            const float a = ptx::as_float(x[i]), b = ptx::as_float(x[i + h]);
            if constexpr (sums_in_pairs) {
                if (h > 1) {
                    const float other_a = ptx::as_float(x[i + 1]), other_b = ptx::as_float(x[i + h + 1]);
                    float sum, other_sum, rest, other_rest;
                    ptx::add_rn_f32x2(a, other_a, b, other_b, sum, other_sum);
                    ptx::sub_rn_f32x2(a, other_a, b, other_b, rest, other_rest);
                    x[i] = ptx::bits(sum), x[i + 1] = ptx::bits(other_sum);
                    x[i + h] = ptx::bits(rest), x[i + h + 1] = ptx::bits(other_rest);
                    continue;
                }
            }
            x[i] = ptx::bits(ptx::add_rn(a, b));
            x[i + h] = ptx::bits(ptx::sub_rn(a, b));
        }
    }
}

// The same between the parts of a run, which neighbouring lanes have. All lanes of a warp must call this.
template <u32 Length>
GPUCAST_INLINE void add_lanes(u32 (&x)[part_size]) {
#pragma unroll
    for (u32 step = 1; step < parts_of<Length>(); step *= 2) {
        // The upper lane has the differences, less its own number. The product is exact.
        const float sign = (threadIdx.x & step) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (u32 i = 0; i < part_size; i += 2) {
            const float a = ptx::as_float(x[i]), b = ptx::as_float(x[i + 1]);
            const float other_a = ptx::as_float(__shfl_xor_sync(~0u, x[i], step));
            const float other_b = ptx::as_float(__shfl_xor_sync(~0u, x[i + 1], step));
            float c, d;
            if constexpr (sums_in_pairs) ptx::fma_rn_f32x2_of(a, b, sign, other_a, other_b, c, d);
            else c = ptx::fma_rn(a, sign, other_a), d = ptx::fma_rn(b, sign, other_b);
            x[i] = ptx::bits(c), x[i + 1] = ptx::bits(d);
        }
    }
}

// The numbers of the warps of a block, number by number, so that lanes read from different banks.
struct WarpParts {
    u32 number[part_threads / 32][part_size][32];
};

// Where the parts of runs lie that are no rows: each warp has a part of 32 runs next to each other.
template <u32 Length>
struct WarpPart {
    enum : u32 { parts = parts_of<Length>(), runs = part_threads / parts, each = part_size / parts };
    u32 warp, lane;

    GPUCAST_INLINE WarpPart() : warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}
    // The number of the run among those of the block, and where number i of a thread lies in it: at first a part, and after
    // `add_warps` some numbers of each part.
    GPUCAST_INLINE u32 run() const { return warp / parts * 32 + lane; }
    GPUCAST_INLINE u32 before(u32 i) const { return warp % parts * part_size + i; }
    GPUCAST_INLINE u32 after(u32 i) const { return i % parts * part_size + warp % parts * each + i / parts; }

    GPUCAST_INLINE void add_warps(u32 (&x)[part_size], WarpParts& shared) const {
        if constexpr (parts > 1) {
#pragma unroll
            for (u32 i = 0; i < part_size; ++i) shared.number[warp][i][lane] = x[i];
            GPUCAST_BARRIER();
            const u32 first = warp / parts * parts;
#pragma unroll
            for (u32 i = 0; i < part_size; ++i) x[i] = shared.number[first + i % parts][warp % parts * each + i / parts][lane];
            add_up<parts>(x);
        }
    }
};

GPUCAST_INLINE void scale_by(u32 (&x)[part_size], float factor) {
#pragma unroll
    for (u32 i = 0; i < part_size; i += 2) {
        float a = ptx::as_float(x[i]), b = ptx::as_float(x[i + 1]);
        if constexpr (sums_in_pairs) ptx::mul_rn_f32x2(a, b, factor, a, b);
        else a = ptx::mul_rn(a, factor), b = ptx::mul_rn(b, factor);
        x[i] = ptx::bits(a), x[i + 1] = ptx::bits(b);
    }
}

// Transforms the parts of rows. The signs come last for the inverse. `scales`: whether sums are multiplied by the factor.
template <u32 Length, bool inverse, bool scales = true>
GPUCAST_INLINE void transform(u32 (&x)[part_size], const u32 (&signs)[128]) {
    const u32 begin = threadIdx.x % parts_of<Length>() * part_size;
    if constexpr (!inverse) {
#pragma unroll
        for (u32 i = 0; i < part_size; ++i) x[i] ^= signs[begin + i];
    }
    add_up<part_size>(x);
    add_lanes<Length>(x);
    if constexpr (scales) scale_by(x, ptx::as_float(transform_factor<Length>()));
    if constexpr (inverse) {
#pragma unroll
        for (u32 i = 0; i < part_size; ++i) x[i] ^= signs[begin + i];
    }
}

// The same of runs that are no rows: numbers of a thread lie at `before` before, and at `after` after it.
template <u32 Length, bool inverse>
GPUCAST_INLINE void transform(u32 (&x)[part_size], const u32 (&signs)[128], const WarpPart<Length>& part, WarpParts& shared) {
    if constexpr (!inverse) {
#pragma unroll
        for (u32 i = 0; i < part_size; ++i) x[i] ^= signs[part.before(i)];
    }
    add_up<part_size>(x);
    part.add_warps(x, shared);
    scale_by(x, ptx::as_float(transform_factor<Length>()));
    if constexpr (inverse) {
#pragma unroll
        for (u32 i = 0; i < part_size; ++i) x[i] ^= signs[part.after(i)];
    }
}

// The numbers of a thread: FLOATs that were transformed, or with a Length of 0 elements as they are. Those that were
// transformed lack the factor unless `scales`.
template <typename Src, typename Float, typename Double, u32 Length, bool scales = true>
struct Fragment {
    enum : bool { lacks_factor = Length != 0 && !scales };
    static GPUCAST_CONSTANT u32 factor() { return transform_factor<Length>(); }
    typedef typename FloatOrDouble<Length != 0, Src, Float>::type Held;
    typedef Value<Src, Float, Double> V;
    typedef Tile<part_size * Src::bits / 8> SrcTile;
    Tile<part_size * Held::bits / 8> x;

    // All lanes of a warp must call this.
    GPUCAST_INLINE void take(const SrcTile& in, const u32 (&signs)[128]) {
        if constexpr (Length == 0) {
            x = in;
        } else {
#pragma unroll
            for (u32 i = 0; i < part_size; ++i) x.word[i] = narrow_bits<V>(V::of(get<Src::bits, typename V::Word>(in, i)));
            transform<Length, false, scales>(x.word, signs);
        }
    }
};

// The elements of a thread that are `stride` bytes apart.
template <typename Src, typename Word, u32 Bytes>
GPUCAST_INLINE void load_apart(const u8* from, i64 stride, Tile<Bytes>& in) {
    in = {};
    // One address at a time: registers for all of them are more than there are.
#pragma unroll
    for (u32 i = 0; i < part_size; ++i, from += stride) put<Src::bits>(in, i, load_element<Src::bits, Word>(from));
}

}  // namespace gpucast
