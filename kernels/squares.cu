// SPDX-License-Identifier: Apache-2.0
// The sums of the squares of many arrays in one launch. All sums are DOUBLE, in an order that depends on the arrays'
// lengths alone; gpucast/mixed/sum_of_squares.py has the same on the host.
//
// gpucast/mixed/gpu/norm_kernels.py puts this file after fused.cu and batch.cu.
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

// Adds neighbours, then neighbouring sums, and so on.
template <u32 Count, u32 Stride>
GPUCAST_INLINE double sum_of_pairs(const double* numbers) {
    if constexpr (Count == 1) return *numbers;
    else return ptx::add_rn(sum_of_pairs<Count / 2, Stride>(numbers), sum_of_pairs<Count / 2, Stride>(numbers + Count / 2 * Stride));
}

// The sum of a number of each of 256 threads, for `done`, which thread 0 calls. Nothing may follow: a barrier is within.
template <typename Done>
GPUCAST_INLINE void sum_of_block(double* shared, double own, const Done& done) {
    shared[threadIdx.x] = own;
    GPUCAST_BARRIER();
    if (threadIdx.x < 32) shared[256 + threadIdx.x] = sum_of_pairs<8, 32>(shared + threadIdx.x);
    GPUCAST_BARRIER();
    if (threadIdx.x == 0) done(sum_of_pairs<32, 1>(shared + 256));
}

struct StoredSum {
    double* to;

    GPUCAST_INLINE void operator()(double sum) const { *to = sum; }
};

// The squares of a block's part of an array: of each of `rounds` rows of 256 * `elements`, a thread has `elements`
// neighbours.
template <typename Src, typename Float, typename Double, u32 SrcBits>
struct SumOfSquares {
    enum : u32 { elements = 8, rounds = 4, row = 256 * elements, shared_bytes = (256 + 32) * sizeof(double) };

    template <u32 Capacity>
    static GPUCAST_INLINE void cast(const NormArrays<Capacity>& given, u32 i, u32 block, FourWords* shared) {
        const Arrays<Capacity>& arrays = given.arrays;
        const i64 begin = (i64(block) * rounds * row) + threadIdx.x * elements, left = arrays.n[i] - begin;
        const u8* const from = arrays.src[i] + begin * SrcBits / 8;
        Tile<SrcBits> in[rounds];
        u32 count[rounds];
#pragma unroll
        for (u32 r = 0; r < rounds; ++r) {
            const u8* const at = from + r * (row * SrcBits / 8);
            const i64 here = left - i64(r * row);
            count[r] = here >= elements ? u32(elements) : here > 0 ? u32(here) : 0;
            in[r] = {};
            if (count[r] == u32(elements) && (address(at) & (Tile<SrcBits>::piece - 1)) == 0) load_aligned(at, in[r]);
            else if (count[r] != 0) load_part(at, 0, 0, count[r] * SrcBits, in[r]);
        }
        double sum = 0;
#pragma unroll
        for (u32 r = 0; r < rounds; ++r) {
#pragma unroll
            for (u32 j = 0; j < elements; ++j) {
                const double x = value(in[r], j);
                if (j < count[r]) sum = ptx::add_rn(sum, ptx::mul_rn(x, x));
            }
        }
        sum_of_block(reinterpret_cast<double*>(shared), sum, StoredSum{given.sums + blockIdx.x});
    }

private:
    static GPUCAST_INLINE double value(const Tile<SrcBits>& in, u32 j) {
        typedef typename WordOf<(SrcBits > 32)>::type Word;
        const Word code = get<SrcBits, Word>(in, j);
        if constexpr (fits_float32<Src>()) return ptx::cvt_f64(ptx::as_float(float_code<Src, Float>(code)));
        else return ptx::as_double(cast_code<Src, Double>(u64(code), ToWide()));
    }
};

}  // namespace gpucast
