// SPDX-License-Identifier: Apache-2.0
// The sums of the squares of many arrays in one launch, also with fused casts of them. All sums are DOUBLE, in an order
// that depends on the arrays' lengths alone; gpucast/mixed/sum_of_squares.py has the same on the host.
//
// gpucast/mixed/gpu/norm_kernels.py puts this file after batch_fused.cu.
namespace gpucast {

template <u32 Capacity>
struct NormArrays {
    Arrays<Capacity> arrays;
    // The place for the sum of each block.
    double* sums;
};

template <u32 Capacity>
GPUCAST_INLINE const Arrays<Capacity>& arrays_of(const NormArrays<Capacity>& given) {
    return given.arrays;
}

template <u32 Capacity>
struct NormCasts {
    FusedArrays<Capacity> fused;
    // The place for the sum of each block.
    double* sums;
};

template <u32 Capacity>
GPUCAST_INLINE const Arrays<Capacity>& arrays_of(const NormCasts<Capacity>& given) {
    return given.fused.arrays;
}

// Adds neighbours, then neighbouring sums, and so on.
template <u32 Count, u32 Stride>
GPUCAST_INLINE double sum_of_pairs(const double* numbers) {
    if constexpr (Count == 1) return *numbers;
    else return ptx::add_rn(sum_of_pairs<Count / 2, Stride>(numbers), sum_of_pairs<Count / 2, Stride>(numbers + Count / 2 * Stride));
}

struct Nothing {
    GPUCAST_INLINE void operator()() const {}
};

// The sum of a number of each of 256 threads, for `done`, which thread 0 calls; then all call `after`. Nothing else may
// follow, because in the host build a barrier returns from this function alone.
template <typename Done, typename After = Nothing>
GPUCAST_INLINE void sum_of_block(double* shared, double own, const Done& done, const After& after = {}) {
    shared[threadIdx.x] = own;
    GPUCAST_BARRIER();
    if (threadIdx.x < 32) shared[256 + threadIdx.x] = sum_of_pairs<8, 32>(shared + threadIdx.x);
    GPUCAST_BARRIER();
    if (threadIdx.x == 0) done(sum_of_pairs<32, 1>(shared + 256));
    after();
}

struct StoredSum {
    double* to;

    GPUCAST_INLINE void operator()(double sum) const { *to = sum; }
};

// A thread's part of a block of an array: of each of `rounds` rows of 256 * `elements`, `elements` neighbours.
template <typename Src, typename Float, typename Double, u32 SrcBits>
struct Rows {
    enum : u32 { elements = 8, rounds = 4, row = 256 * elements };
    i64 begin;
    Tile<SrcBits> in[rounds];
    u32 count[rounds];

    template <u32 Capacity>
    GPUCAST_INLINE Rows(const Arrays<Capacity>& arrays, u32 i, u32 block)
        : begin((i64(block) * rounds * row) + threadIdx.x * elements) {
        const i64 left = arrays.n[i] - begin;
        const u8* const from = arrays.src[i] + begin * SrcBits / 8;
#pragma unroll
        for (u32 r = 0; r < rounds; ++r) {
            const u8* const at = from + r * (row * SrcBits / 8);
            const i64 here = left - i64(r * row);
            count[r] = here >= elements ? u32(elements) : here > 0 ? u32(here) : 0;
            in[r] = {};
            if (count[r] == u32(elements) && (address(at) & (Tile<SrcBits>::piece - 1)) == 0) load_aligned(at, in[r]);
            else if (count[r] != 0) load_part(at, 0, 0, count[r] * SrcBits, in[r]);
        }
    }

    GPUCAST_INLINE double sum_of_squares() const {
        double sum = 0;
#pragma unroll
        for (u32 r = 0; r < rounds; ++r) {
#pragma unroll
            for (u32 j = 0; j < elements; ++j) {
                const double x = value(in[r], j);
                if (j < count[r]) sum = ptx::add_rn(sum, ptx::mul_rn(x, x));
            }
        }
        return sum;
    }

private:
    static GPUCAST_INLINE double value(const Tile<SrcBits>& in, u32 j) {
        typedef typename WordOf<(SrcBits > 32)>::type Word;
        const Word code = get<SrcBits, Word>(in, j);
        if constexpr (fits_float32<Src>()) return ptx::cvt_f64(ptx::as_float(float_code<Src, Float>(code)));
        else return ptx::as_double(cast_code<Src, Double>(u64(code), ToWide()));
    }
};

// The squares of a block's part of an array.
template <typename Src, typename Float, typename Double, u32 SrcBits>
struct SumOfSquares {
    enum : u32 { shared_bytes = (256 + 32) * sizeof(double) };

    template <u32 Capacity>
    static GPUCAST_INLINE void cast(const NormArrays<Capacity>& given, u32 i, u32 block, FourWords* shared) {
        const Rows<Src, Float, Double, SrcBits> rows(given.arrays, i, block);
        sum_of_block(reinterpret_cast<double*>(shared), rows.sum_of_squares(), StoredSum{given.sums + blockIdx.x});
    }
};

template <typename Converter, typename Dst, typename Rows>
struct CastRows {
    const FusedArguments& given;
    const Rows& rows;
    u8* dst;

    GPUCAST_INLINE void operator()() const {
        Converter converter(given);
#pragma unroll
        for (u32 r = 0; r < Rows::rounds; ++r) {
            Tile<Dst::bits> out = {};
            const i64 begin = rows.begin + r * Rows::row;
            u8* const to = dst + begin * i64(Dst::bits) / 8;
            converter.template tile<Rows::elements>(rows.in[r], out, begin);
            const bool whole = rows.count[r] == u32(Rows::elements);
            if (whole && (address(to) & (Tile<Dst::bits>::piece - 1)) == 0) store_aligned(to, out);
            else if (rows.count[r] != 0) store_part(to, 0, rows.count[r] * Dst::bits, out);
        }
        converter.finish();
    }
};

template <typename Src, typename Dst, typename Float, typename Double, u32 SrcBits, typename Rule, Scaling scaling,
          bool has_amax, bool has_finite>
struct CastSquares : SumOfSquares<Src, Float, Double, SrcBits> {
    // All casts come after the last barrier: a result may take the place of its source.
    template <u32 Capacity>
    static GPUCAST_INLINE void cast(const NormCasts<Capacity>& given, u32 i, u32 block, FourWords* shared) {
        typedef Rows<Src, Float, Double, SrcBits> Own;
        typedef Fused<Src, Dst, Float, Double, SrcBits, Rule, scaling, has_amax, has_finite> Converter;
        const Arrays<Capacity>& arrays = arrays_of(given);
        const Own rows(arrays, i, block);
        sum_of_block(reinterpret_cast<double*>(shared), rows.sum_of_squares(), StoredSum{given.sums + blockIdx.x},
                     CastRows<Converter, Dst, Own>{given.fused.given, rows, arrays.dst[i]});
    }
};

}  // namespace gpucast
