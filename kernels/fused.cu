// SPDX-License-Identifier: Apache-2.0
// A cast fused with what else a training step asks of the same pass: a multiplication by one number, rounding at random,
// the largest magnitude of the source, and whether all of it is finite.
//
// gpucast/fused_source.py puts this file behind the others (philox.cuh and stochastic.cuh too), for these kernels alone.
namespace gpucast {

// What a fused kernel is given; gpucast.fused_source.FusedArguments has the same fields. What no option asks for is not read.
struct FusedArguments {
    // The number, or where it lies on the device: a FLOAT where the scaling is narrow, else a DOUBLE.
    double scale;
    const void* scale_at;
    // A FLOAT: the largest magnitude so far.
    int* amax;
    // Becomes 0 where a source value is infinite or NaN.
    u8* finite;
    Random random;
    // The index of the array's first element among those that the random words are for.
    i64 first;
};

template <u32 MaxDims>
struct FusedDims {
    FusedArguments given;
    Dims<MaxDims> dims;
};

// A number to multiply with: none, a value of FLOAT, or any DOUBLE.
enum class Scaling { none, narrow, wide };

// To FLOAT or DOUBLE.
typedef CastRule<Overflow::infinity, false, Rounding::truncate, RoundMode::up> ToWide;

// True where FLOAT has every value of the type.
template <typename Row>
GPUCAST_CONSTANT bool fits_float32() {
    return u32(Row::bits) <= 16 || (Row::is_float && u32(Row::bits) == 32);
}

// True where the product of two FLOATs may be rounded to FLOAT (see `Fused::float_product`) before it goes to `Dst`.
template <typename Dst>
GPUCAST_CONSTANT bool takes_float32() {
    if constexpr (Dst::is_e8m0) return true;
    else if constexpr (!Dst::is_float) return false;
    // The smallest number is far above what FLOAT cannot tell from zero.
    else return is_upper_half<Dst>() || u32(Dst::bits) == 32 || (is_small<Dst>() && int(Dst::bias) + int(Dst::mantissa_bits) < 100);
}

// What is larger for larger magnitudes, and largest for NaN: the code without its sign, of an integer its magnitude.
template <typename Row, typename Word>
GPUCAST_INLINE Word magnitude(Word code) {
    code &= Word(Row::mask);
    if constexpr (Row::is_bool) return code != 0;
    else if constexpr (Row::is_int) return (code & Word(Row::sign_code)) != 0 ? (0 - code) & Word(Row::mask) : code;
    else {
        const Word found = code & ~Word(Row::sign_code);
        if constexpr (!Row::is_float) return found;
        // Where NaN has no sign, it stands where -0 would.
        else return !Row::has_negative_zero && code == Word(Row::sign_code) ? code : found;
    }
}

// The code of a FLOAT, of a type whose values are all among FLOAT's; any NaN of its sign.
template <typename Row, typename Float, typename Word>
GPUCAST_INLINE u32 float_code(Word code) {
    if constexpr (Row::is_float && u32(Row::bits) <= 8) {
        // As if it had FLOAT's bias, then brought to its own: subnormal numbers become normal ones.
        const u32 sign = Row::sign_code, magnitude = u32(code) & u32(Row::mask) & ~sign;
        const float power = ptx::as_float(u32(254 - Row::bias) << 23);
        u32 found = ptx::bits(ptx::mul_rn(ptx::as_float(magnitude << (23 - Row::mantissa_bits)), power));
        if constexpr (Row::has_nan) {
            if constexpr (Row::has_inf) {
                if (magnitude >= u32(Row::inf_code)) found = u32(Float::inf_code) + (magnitude - u32(Row::inf_code));
            } else if constexpr (Row::has_negative_zero) {
                if (magnitude == u32(Row::nan_code)) found = u32(Float::nan_code);
            } else if ((u32(code) & u32(Row::mask)) == u32(Row::nan_code)) {
                return u32(Float::nan_code);
            }
        }
        return found | (u32(code) & sign) << (32 - Row::bits);
    } else {
        return u32(cast_code<Row, Float>(code, ToWide()));
    }
}

// A magnitude, as the code of a FLOAT.
template <typename Row, typename Float, typename Word>
GPUCAST_INLINE u32 float_magnitude(Word found) {
    if constexpr (Row::is_float || Row::is_e8m0) {
        const u32 code = u32(cast_code<Row, Float>(found, ToWide()));
        return code > u32(Float::inf_code) ? u32(Float::nan_code) : code;
    } else {
        return u32(encode<Float>(normalised(false, found, Width<Word>::bits - 1), ToWide(), FloatFamily()));
    }
}

// A converter (see cast.cu). `Rule` is that of the rounding: without a number that of Src to Dst, else of DOUBLE to Dst.
// Kernels call `finish` with whole warps once all elements are cast.
template <typename Src, typename Dst, typename Float, typename Double, u32 SrcBits, typename Rule, Scaling scaling, bool has_amax,
          bool has_finite>
struct Fused {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    enum : u32 { shared_bytes = 0 };
    enum : bool {
        observes = has_amax || has_finite,
        stochastic = Rule::rounding() == Rounding::stochastic,
        by_float = scaling == Scaling::narrow && !stochastic && fits_float32<Src>() && takes_float32<Dst>()
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
            // The last lane, because on the host a warp's threads run in turn. Most warps find nothing new: of so many
            // atomic operations on one address each would wait for the others.
            if (ptx::lane() == 31 && found > *given.amax) ptx::red_max(given.amax, found);
        }
    }

private:
    GPUCAST_INLINE void observe(Word code) {
        const Word found = magnitude<Src>(code);
        largest = found > largest ? found : largest;
    }

    // As `stochastic_lanes` has them.
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

    // The code of a DOUBLE.
    GPUCAST_INLINE u64 product(Word code) const {
        const u64 value = cast_code<Src, Double>(u64(code), ToWide());
        // Rounded once, subnormals kept: no flag bends a product of doubles that is not added to anything.
        u64 product = ptx::bits(ptx::as_double(value) * scale);
        // Which NaN a multiplication gives is the processor's choice. Here it keeps its sign; infinity times 0 is +NaN.
        const u64 sign = Double::sign_code, infinity = Double::inf_code;
        if ((product & ~sign) > infinity) product = u64(Double::nan_code) | ((value & ~sign) > infinity ? value & sign : 0);
        return product;
    }

    // The code of a FLOAT that goes to Dst as the product does: to FLOAT rounded as any product is, to types of fewer bits
    // rounded to odd (float32.cuh). DOUBLE, which many GPUs are slow at, would hold the product of two FLOATs.
    GPUCAST_INLINE u32 float_product(Word code) const {
        const u32 value = float_code<Src, Float>(code);
        const float x = ptx::as_float(value), y = ptx::cvt_rn_f32(scale);
        u32 product;
        if constexpr (u32(Dst::bits) == 32) {
            product = ptx::bits(ptx::mul_rn(x, y));
        } else {
            const float cut = ptx::mul_rz(x, y);
            // What was cut off is NaN where the product is infinite.
            product = ptx::bits(cut) | ptx::set_ne(ptx::fma_rn(x, y, ptx::neg(cut)), 0);
            if constexpr (is_upper_half<Dst>() || Dst::is_e8m0) {
                // Below 2^-102 FLOAT may not hold what was cut off.
                const bool tiny = (product & 0x7fffffff) < 25u << 23 && value << 1 != 0;
                if (tiny) product = ptx::bits(as_float32<Double>(ptx::bits(ptx::cvt_f64(x) * scale)));
            }
        }
        // NaN keeps its sign; infinity times 0 gives the NaN of all instructions, which is positive.
        return x != x ? value : product;
    }
};

}  // namespace gpucast

// fused_source.py defines NAME_rule.
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
#define GPUCAST_FUSED_STRIDED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE, MAX_DIMS, THREADS)                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::FusedDims<MAX_DIMS> more) {                                              \
        GPUCAST_FUSED(NAME, SRC, DST, SRC_BITS, SCALING, AMAX, FINITE) converter(more.given);                          \
        gpucast::cast_strided<SRC_BITS, gpucast::DST::bits, THREADS>(                                                  \
            src, src_bit, dst, n, more.dims, blockIdx.x, converter);                                                   \
        converter.finish();                                                                                            \
    }
