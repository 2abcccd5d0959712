// SPDX-License-Identifier: Apache-2.0
// A cast with fused operations of a training step, in the same pass over memory: a multiplication by one number,
// stochastic rounding, the largest magnitude of the source, and whether all of the source is finite.
//
// gpucast/kernel/fused_kernel.py puts philox.cuh, stochastic.cuh and this file after those that every kernel needs. It has
// the fields of FusedArguments, the last argument of a fused kernel.
namespace gpucast {

// A number to multiply with: none, a value of FLOAT, or any DOUBLE.
enum class Scaling { none, narrow, wide };

// The rule of casts to FLOAT or DOUBLE as a compute type.
typedef CastRule<Overflow::infinity, false, Rounding::ties_to_even, RoundMode::up> ToWide;

// Whether FLOAT has every value of the type.
template <typename DType>
GPUCAST_CONSTANT bool fits_float32() {
    return u32(DType::bits) <= 16 || (DType::is_float && u32(DType::bits) == 32);
}

// Whether the product of two FLOATs may be rounded to FLOAT (see `Fused::float_product`) before it is cast to `Dst`.
template <typename Dst>
GPUCAST_CONSTANT bool takes_float32() {
    if constexpr (Dst::is_e8m0) return true;
    else if constexpr (!Dst::is_float) return false;
    // Of small floats those whose smallest number is far above FLOAT's.
    else return is_upper_half<Dst>() || u32(Dst::bits) == 32 || (is_small<Dst>() && int(Dst::bias) + int(Dst::mantissa_bits) < 100);
}

// A key that grows with the magnitude, and is largest for NaN: the code without its sign, or the magnitude of an
// integer.
template <typename DType, typename Word>
GPUCAST_INLINE Word magnitude(Word code) {
    code &= Word(DType::mask);
    if constexpr (DType::is_bool) return code != 0;
    else if constexpr (DType::is_int) return (code & Word(DType::sign_code)) != 0 ? (0 - code) & Word(DType::mask) : code;
    else {
        const Word found = code & ~Word(DType::sign_code);
        if constexpr (!DType::is_float) return found;
        // Types without -0 have NaN in its place.
        else return !DType::has_negative_zero && code == Word(DType::sign_code) ? code : found;
    }
}

// The number as the code of a FLOAT, for a type whose values are all FLOATs; of NaN only the sign is kept.
template <typename DType, typename Float, typename Word>
GPUCAST_INLINE u32 float_code(Word code) {
    if constexpr (DType::is_float && u32(DType::bits) <= 8) {
        // The bits are taken for those of a FLOAT and multiplied by the power of two between the two biases, which
        // makes subnormal numbers normal.
        const u32 sign = DType::sign_code, magnitude = u32(code) & u32(DType::mask) & ~sign;
        const float power = ptx::as_float(u32(254 - DType::bias) << 23);
        u32 found = ptx::bits(ptx::mul_rn(ptx::as_float(magnitude << (23 - DType::mantissa_bits)), power));
        if constexpr (DType::has_nan) {
            if constexpr (DType::has_inf) {
                if (magnitude >= u32(DType::inf_code)) found = u32(Float::inf_code) + (magnitude - u32(DType::inf_code));
            } else if constexpr (DType::has_negative_zero) {
                if (magnitude == u32(DType::nan_code)) found = u32(Float::nan_code);
            } else if ((u32(code) & u32(DType::mask)) == u32(DType::nan_code)) {
                return u32(Float::nan_code);
            }
        }
        return found | (u32(code) & sign) << (32 - DType::bits);
    } else {
        return u32(cast_code<DType, Float>(code, ToWide()));
    }
}

// The magnitude with a key (`magnitude`) as the code of a FLOAT.
template <typename DType, typename Float, typename Word>
GPUCAST_INLINE u32 float_magnitude(Word found) {
    if constexpr (DType::is_float || DType::is_e8m0) {
        const u32 code = u32(cast_code<DType, Float>(found, ToWide()));
        return code > u32(Float::inf_code) ? u32(Float::nan_code) : code;
    } else {
        return u32(encode<Float>(normalised(false, found, Width<Word>::bits - 1), ToWide(), FloatFamily()));
    }
}

// A converter (see cast.cu). `Rule` is that of Src to Dst, or with a number to multiply with that of DOUBLE to Dst.
// Kernels call `finish` with all threads of a warp once all elements are cast.
template <typename Src, typename Dst, typename Float, typename Double, u32 SrcBits, typename Rule, Scaling scaling, bool has_amax,
          bool has_finite>
struct Fused {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    enum : u32 { shared_bytes = 0 };
    enum : bool {
        observes = has_amax || has_finite,
        stochastic = Rule::rounding() == Rounding::stochastic,
        by_float = scaling == Scaling::narrow && !stochastic && !rounds_by_rule<Dst, Rule>() && fits_float32<Src>() && takes_float32<Dst>()
    };
    const FusedArguments& given;
    double scale;
    Word largest;

    GPUCAST_INLINE explicit Fused(const FusedArguments& arguments) : given(arguments), scale(arguments.scale), largest(0) {
        if constexpr (scaling != Scaling::none) {
            if (given.scale_at == nullptr) return;
            if constexpr (scaling == Scaling::narrow) scale = ptx::cvt_f64(*static_cast<const float*>(given.scale_at));
            else scale = *static_cast<const double*>(given.scale_at);
        }
    }

    GPUCAST_INLINE void fill() const {}

    GPUCAST_INLINE Word one(Word code, i64 i) {
        if constexpr (observes) observe(code);
        if constexpr (stochastic) {
            return at_random<1>({code}, {given.random.one(given.first + i)});
        } else if constexpr (scaling == Scaling::none) {
            return cast_code<Src, Dst>(code, Rule());
        } else if constexpr (!by_float) {
            return Word(cast_code<Double, Dst>(product(code), Rule()));
        } else if constexpr (u32(Dst::bits) == 32) {
            return to_float<Float, Dst>(float_product(code), Rule());
        } else {
            return cast_code<Float, Dst>(float_product(code), Rule());
        }
    }

    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64 begin) {
        if constexpr (stochastic) {
            u32 random[Elements];
            given.random.template words<Elements>(given.first + begin, random);
            const u32 count = Group<Dst::bits, Elements>::elements;
#pragma unroll
            for (u32 i = 0; i < Elements; i += count) {
                Word codes[count];
                u32 words[count];
#pragma unroll
                for (u32 j = 0; j < count; ++j) {
                    codes[j] = get<SrcBits, Word>(in, i + j);
                    words[j] = random[i + j];
                    if constexpr (observes) observe(codes[j]);
                }
                put_lanes<Dst::bits, count>(out, i, at_random(codes, words));
            }
        } else if constexpr (scaling == Scaling::none) {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) observe(get<SrcBits, Word>(in, i));
            Arithmetic<Src, Dst, SrcBits, Rule>().template tile<Elements>(in, out, begin);
        } else if constexpr (by_float && u32(Dst::bits) <= 16) {
            const u32 count = Group<Dst::bits, Elements>::elements;
#pragma unroll
            for (u32 i = 0; i < Elements; i += count) {
                u32 products[count];
#pragma unroll
                for (u32 j = 0; j < count; ++j) {
                    const Word code = get<SrcBits, Word>(in, i + j);
                    if constexpr (observes) observe(code);
                    products[j] = float_product(code);
                }
                put_lanes<Dst::bits, count>(out, i, cast_lanes<Float, Dst>(products, Rule()));
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<Dst::bits>(out, i, one(get<SrcBits, Word>(in, i), begin + i));
        }
    }

    GPUCAST_INLINE void finish() const {
        if constexpr (has_finite && Src::has_nan) {
            if (largest > Word(Src::max_code)) *given.finite = 0;
        }
        if constexpr (has_amax) {
            const int found = ptx::redux_max(int(float_magnitude<Src, Float>(largest)));
            // The last lane, because in the host build the threads of a warp run in turn. Compared first, because most
            // warps do not have a new maximum, and atomic operations on one address wait for each other.
            if (ptx::lane() == 31 && found > *given.amax) ptx::red_max(given.amax, found);
        }
    }

private:
    GPUCAST_INLINE void observe(Word code) {
        const Word found = magnitude<Src>(code);
        largest = found > largest ? found : largest;
    }

    // Codes in the lanes of a word, as `stochastic_lanes` returns them.
    template <u32 N>
    GPUCAST_INLINE u32 at_random(const Word (&codes)[N], const u32 (&words)[N]) const {
        if constexpr (scaling == Scaling::none) {
            return stochastic_lanes<Src, Dst>(codes, words, Rule());
        } else {
            u64 products[N];
#pragma unroll
            for (u32 i = 0; i < N; ++i) products[i] = product(codes[i]);
            return stochastic_lanes<Double, Dst>(products, words, Rule());
        }
    }

    // The product as the code of a DOUBLE.
    GPUCAST_INLINE u64 product(Word code) const {
        const u64 value = cast_code<Src, Double>(u64(code), ToWide());
        // Rounded once, subnormals kept: no compiler flag changes a product of doubles to which nothing is added.
        u64 product = ptx::bits(ptx::as_double(value) * scale);
        // Processors differ in the NaN of a product. Here NaN keeps its sign; infinity times 0 is +NaN.
        const u64 sign = Double::sign_code, infinity = Double::inf_code;
        if ((product & ~sign) > infinity) product = u64(Double::nan_code) | ((value & ~sign) > infinity ? value & sign : 0);
        return product;
    }

    // The code of a FLOAT whose cast to Dst is that of the product: for FLOAT the product rounded to nearest, for types
    // of fewer bits rounded to odd (float32.cuh). DOUBLE would hold the product of two FLOATs, but many GPUs are slow
    // at it.
    GPUCAST_INLINE u32 float_product(Word code) const {
        const u32 value = float_code<Src, Float>(code);
        const float x = ptx::as_float(value), y = ptx::cvt_rn_f32(scale);
        u32 product;
        if constexpr (u32(Dst::bits) == 32) {
            product = ptx::bits(ptx::mul_rn(x, y));
        } else {
            const float cut = ptx::mul_rz(x, y);
            // Where the product is infinite, the part that was cut off is NaN, for which set_ne gives 0.
            product = ptx::bits(cut) | ptx::set_ne(ptx::fma_rn(x, y, ptx::neg(cut)), 0);
            if constexpr (is_upper_half<Dst>() || Dst::is_e8m0) {
                // Below 2^-102 the part that was cut off may be below all FLOATs.
                const bool tiny = (product & 0x7fffffff) < 25u << 23 && value << 1 != 0;
                if (tiny) product = ptx::bits(as_float32<Double>(ptx::bits(ptx::cvt_f64(x) * scale)));
            }
        }
        // NaN keeps its sign; for infinity times 0 the instructions give their canonical NaN, which is positive.
        return x != x ? value : product;
    }
};

}  // namespace gpucast

// Macros, because the name of a kernel is a pair's. gpucast/kernel/fused_kernel.py defines NAME_rule.
#define GPUCAST_FUSED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE)                                                 \
    gpucast::Fused<gpucast::SRC, gpucast::DST, gpucast::FLOAT, gpucast::DOUBLE, SRC_BITS, gpucast::NAME##_rule,        \
                   gpucast::Scaling::SCALING, AMAX, FINITE>
#define GPUCAST_FUSED_CONTIGUOUS(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE, ELEMENTS, UNROLL, THREADS)           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::FusedArguments given) {                                                  \
        GPUCAST_FUSED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE) converter(given);                               \
        gpucast::cast_contiguous<SRC_BITS, gpucast::DST::bits, ELEMENTS, UNROLL, THREADS>(                             \
            src, src_bit, dst, n, blockIdx.x, converter);                                                              \
        converter.finish();                                                                                            \
    }
#define GPUCAST_FUSED_STRIDED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE, MAX_DIMS, ELEMENTS, THREADS)            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::FusedDims<MAX_DIMS> more) {                                              \
        GPUCAST_FUSED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE) converter(more.given);                          \
        gpucast::cast_strided<SRC_BITS, gpucast::DST::bits, ELEMENTS, THREADS>(                                        \
            src, src_bit, dst, n, more.dims, blockIdx.x, converter);                                                   \
        converter.finish();                                                                                            \
    }
