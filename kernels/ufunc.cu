// SPDX-License-Identifier: Apache-2.0
// An expression of several arrays, computed in FLOAT or DOUBLE and cast once. gpucast/user_kernels/ufunc_kernel.py puts this
// after fused.cu, and adds a function of the expression and a kernel that calls what is below.
namespace gpucast {

// ---- operations: each one rounds to nearest by itself, whatever the compiler's flags ----

template <typename T> GPUCAST_INLINE T add(T a, T b) { return ptx::add_rn(a, b); }
template <typename T> GPUCAST_INLINE T subtract(T a, T b) { return ptx::sub_rn(a, b); }
template <typename T> GPUCAST_INLINE T multiply(T a, T b) { return ptx::mul_rn(a, b); }
template <typename T> GPUCAST_INLINE T divide(T a, T b) { return ptx::div_rn(a, b); }
template <typename T> GPUCAST_INLINE T sqrt(T a) { return ptx::sqrt_rn(a); }
GPUCAST_INLINE float negative(float a) { return ptx::neg(a); }
GPUCAST_INLINE double negative(double a) { return ptx::as_double(ptx::bits(a) ^ u64(1) << 63); }
GPUCAST_INLINE float abs(float a) { return ptx::abs(a); }
GPUCAST_INLINE double abs(double a) { return ptx::as_double(ptx::bits(a) & ~(u64(1) << 63)); }
template <typename T> GPUCAST_INLINE bool less(T a, T b) { return a < b; }
template <typename T> GPUCAST_INLINE bool less_equal(T a, T b) { return a <= b; }
template <typename T> GPUCAST_INLINE bool greater(T a, T b) { return a > b; }
template <typename T> GPUCAST_INLINE bool greater_equal(T a, T b) { return a >= b; }
template <typename T> GPUCAST_INLINE bool equal(T a, T b) { return a == b; }
template <typename T> GPUCAST_INLINE bool not_equal(T a, T b) { return a != b; }
GPUCAST_INLINE bool logical_and(bool a, bool b) { return a && b; }
GPUCAST_INLINE bool logical_or(bool a, bool b) { return a || b; }
GPUCAST_INLINE bool logical_not(bool a) { return !a; }
template <typename T> GPUCAST_INLINE T where(bool a, T b, T c) { return a ? b : c; }
template <typename T> GPUCAST_INLINE T minimum(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> GPUCAST_INLINE T maximum(T a, T b) { return a > b || a != a ? a : b; }

// ---- arrays ----

// An input: elements in row-major order of the result without gaps; at strides, of which 0 repeats an element; or a
// number.
enum class Walk { dense, strided, number };
enum : u32 { ufunc_dims = 10 };

struct UfuncInput {
    const u8* from;
    double number;
    // The strides of this input, and of the result, in bits.
    Dims<ufunc_dims> dims;
};

// The last argument of a kernel; gpucast.user_kernels.ufunc_kernel.UfuncArguments has the same fields.
template <u32 Inputs>
struct UfuncArguments {
    FusedArguments given;
    UfuncInput input[Inputs];
};

template <typename Compute, u32 Bytes>
GPUCAST_INLINE auto value_of(const Tile<Bytes>& tile, u32 i) {
    if constexpr (Compute::bits == 32) return ptx::as_float(get<32, u32>(tile, i));
    else return ptx::as_double(get<64, u64>(tile, i));
}

// The code of a value, in whose place in the tile there is none yet; NaN is positive.
template <typename Compute, u32 Bytes, typename Value>
GPUCAST_INLINE void put_value(Tile<Bytes>& tile, u32 i, Value value) {
    const auto code = ptx::bits(value);
    put<Compute::bits>(tile, i, value != value ? decltype(code)(Compute::nan_code) : code);
}

// Elements `begin` and those after it, as numbers of the compute type; behind the array zeros.
template <typename Src, typename Compute, u32 SrcBits, Walk walk, u32 Elements, typename Value>
GPUCAST_INLINE void load_values(const UfuncInput& input, i64 begin, i64 n, Value (&x)[Elements]) {
    typedef typename WordOf<(SrcBits > 32)>::type Word;
    typedef Tile<Elements * SrcBits / 8> InTile;
    if constexpr (walk == Walk::number) {
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) {
            if constexpr (Compute::bits == 32) x[i] = ptx::cvt_rn_f32(input.number);
            else x[i] = input.number;
        }
    } else {
        InTile in = {};
        Tile<Elements * Compute::bits / 8> values = {};
        const u8* from = input.from + (begin * i64(SrcBits) >> 3);
        if (walk == Walk::dense && begin + Elements <= n && (address(from) & (InTile::piece - 1)) == 0) {
            load_aligned(from, in);
        } else {
            if constexpr (walk == Walk::dense) ptx::mark_rare();
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) {
                if (begin + i >= n) continue;
                const i64 bit = offsets(input.dims, input.dims.count, u64(begin + i), n >> 32 != 0).src;
                if constexpr (SrcBits < 8) put<SrcBits>(in, i, read_element<SrcBits, Word>(input.from + (bit >> 3), u64(bit & 7)));
                else put<SrcBits>(in, i, load_element<SrcBits, Word>(input.from + (bit >> 3)));
            }
        }
        Arithmetic<Src, Compute, SrcBits, ToWide>().template tile<Elements>(in, values, begin);
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) x[i] = value_of<Compute>(values, i);
    }
}

// Writes the part of a tile that is in the array.
template <u32 DstBits, Walk walk, u32 Elements, u32 Bytes>
GPUCAST_INLINE void store_values(u8* dst, const Dims<ufunc_dims>& dims, i64 begin, i64 n, const Tile<Bytes>& out) {
    typedef typename WordOf<(DstBits > 32)>::type Word;
    if (begin >= n) return;
    u8* to = dst + (begin * i64(DstBits) >> 3);
    const u32 count = begin + Elements <= n ? Elements : u32(n - begin);
    if constexpr (walk == Walk::dense) {
        if (count == Elements && (address(to) & (Tile<Bytes>::piece - 1)) == 0) store_aligned(to, out);
        else store_part(to, 0, count * DstBits, out);
    } else {
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) {
            if (i >= count) continue;
            const i64 bit = offsets(dims, dims.count, u64(begin + i), n >> 32 != 0).dst;
            store_element<DstBits>(dst + (bit >> 3), get<DstBits, Word>(out, i));
        }
    }
}

}  // namespace gpucast
