// SPDX-License-Identifier: Apache-2.0
// Narrow codes with scales back to arrays: the inverse of quantize.cu.
namespace gpucast {

// The numbers of a block's codes.
//
// The value v of a code times a scale that is a power of two, or has few bits, is exact in FLOAT, or infinite. Any
// other factor f has B significant bits. v has at most 9 bits, so that for B up to 12 the product is exact in FLOAT.
// Else the product is an odd number of more than 12 bits times a power of two, and so never halfway between two numbers
// of 11 bits or fewer: it is rounded to odd, by truncation and setting the last bit, which rounds to the same numbers
// (float32.cuh).
template <typename F, typename Dst, typename Float, typename Double>
struct Multiplier {
    typedef typename F::element DType;
    typedef typename WordOf<Dst::bits == 64>::type Word;
    enum : bool {
        by_power = F::scale::is_e8m0 && !F::global_scale,
        by_float = Dst::bits <= 32 && (!F::global_scale || is_e4m3<typename F::scale>())
    };
    static_assert(DType::bits <= 8, "values of up to 9 bits");
    Scale scale;
    float global;

    GPUCAST_INLINE Multiplier(const Scale& of, float global_scale) : scale(of), global(global_scale) {}

    // All numbers of a tile. False where they are left to `put_one`.
    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE bool tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        if constexpr (by_float) {
            const float first = ptx::mul_rn(narrow_scale<F, Float>(scale.code), lift());
            const float factor = F::global_scale ? global : first;
            // The fast path takes no infinity or NaN, because processors differ in their products with zero, and no
            // subnormal factor, because the test for B below needs a normal one.
            const u32 magnitude = ptx::bits(factor) & 0x7fffffff, least = by_power ? 0 : 1u << 23;
            bool fast = magnitude - least < u32(Float::inf_code) - least;
            if constexpr (F::global_scale) fast &= first == first;
            float value[Elements];
            fast &= values<Elements>(in, value);
            if (fast) {
                const u32 last = !by_power && (ptx::bits(factor) & 0xfff) != 0;
                const u32 count = Group<Dst::bits, Elements>::elements;
#pragma unroll
                for (u32 i = 0; i < Elements; i += count) {
                    u32 some[count];
#pragma unroll
                    for (u32 j = 0; j < count; ++j) {
                        const float x = F::global_scale ? ptx::mul_rn(value[i + j], first) : value[i + j];
                        some[j] = product(x, factor, last);
                    }
                    put_numbers(out, i, some);
                }
            }
            return fast;
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<Dst::bits>(out, i, one(get<DType::bits, u32>(in, i)));
            return true;
        }
    }

    // Number i behind an address.
    GPUCAST_INLINE void put_one(const u8* from, u8* to, u32 i) const {
        store_element<Dst::bits>(to + i * (Dst::bits / 8), one(read_element<DType::bits, u32>(from, u64(i) * DType::bits)));
    }

    // One number with DOUBLE as the compute type.
    GPUCAST_INLINE Word one(u32 code) const {
        const u64 sign = Double::sign_code, infinity = Double::inf_code;
        const u64 value = cast_code<DType, Double>(u64(code), ToWide());
        const double s = scale_value<F, Float, Double>(scale.code) * ptx::cvt_f64(global);
        u64 product = ptx::bits((ptx::as_double(value) - double(scale.zero_point)) * s);
        if ((product & ~sign) > infinity) product = u64(Double::nan_code);
        if ((value & ~sign) > infinity) product = value;
        if (s != s) product = u64(Double::nan_code);
        return Word(cast_code<Double, Dst>(product, ToWide()));
    }

    // The factor that `values` leaves out.
    static GPUCAST_CONSTANT float lift() { return is_float4<DType>() && !has_conversion<DType>() ? 16384.0f : 1.0f; }

    // The values of all codes, without the factor `lift`. False where one is NaN or infinite.
    template <u32 Elements, u32 Bytes>
    GPUCAST_INLINE bool values(const Tile<Bytes>& in, float (&value)[Elements]) const {
        const u32 of_word = 32 / DType::bits;
        if constexpr (DType::is_int && 8 % DType::bits == 0 && Elements * DType::bits % 8 == 0) {
            // An integer in the low byte of the float 2^23 is added to it; then 2^23 is subtracted. Signed integers get
            // an offset that makes them positive.
            const u32 of_byte = 8 / DType::bits, offset = DType::sign_code;
            const float less = ptx::cvt_rn_f32(-int(8388608 + offset) - scale.zero_point);
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) {
                const u32 word = in.word[i / of_word] >> (u32(DType::bits) * (i % of_byte));
                const u32 bytes = (word & repeated<8>(u32(DType::mask))) ^ repeated<8>(offset);
                value[i] = ptx::add_rn(ptx::as_float(ptx::prmt(bytes, 0x4b000000, 0x7540 + i % of_word / of_byte)), less);
            }
            return true;
        } else if constexpr (has_conversion<DType>() && u32(DType::bits) == 8 && Elements % 4 == 0) {
            u32 any = 0;
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                const u32 codes = in.word[i / 4];
                u32 low, high;
                if constexpr (is_e4m3<DType>()) ptx::cvt_f16x4_e4m3(codes, low, high);
                else ptx::cvt_f16x4_e5m2(codes, low, high);
                ptx::cvt_f32_f16x2(low, value[i], value[i + 1]);
                ptx::cvt_f32_f16x2(high, value[i + 2], value[i + 3]);
                // The top bit of a byte is set where the code is above that of the largest number.
                any |= (codes & repeated<8>(0x7f)) + repeated<8>(0x7f - u32(DType::max_code));
            }
            return (any & repeated<8>(0x80)) == 0;
        } else if constexpr (is_float4<DType>() && Elements == 4) {
            // Two codes in the low byte of each half; the other bytes are arbitrary.
            const Tile<4> apart = {{ptx::prmt(in.word[0], 0, 0x1100)}};
            float eight[8];
            values<8>(apart, eight);
            value[0] = eight[0];
            value[1] = eight[1];
            value[2] = eight[4];
            value[3] = eight[5];
            return true;
        } else if constexpr (is_float4<DType>() && Elements % 8 == 0) {
#pragma unroll
            for (u32 i = 0; i < Elements; i += 8) {
                const u32 codes = in.word[i / 8];
                u32 halves[4];
                if constexpr (has_conversion<DType>()) {
                    ptx::cvt_f16x8_e2m1(codes, halves);
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) ptx::cvt_f32_f16x2(halves[j], value[i + 2 * j], value[i + 2 * j + 1]);
                } else {
                    // The smallest normal element becomes the smallest normal FLOAT16: see `lift`.
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) {
                        const u32 magnitudes = j < 3 ? codes << (j < 3 ? 9 - 4 * j : 0) : codes >> 3;
                        const u32 half = (magnitudes & repeated<16>(0x0e00)) | (codes << (12 - 4 * j) & repeated<16>(0x8000));
                        ptx::cvt_f32_f16x2(half, value[i + j], value[i + j + 4]);
                    }
                }
            }
            return true;
        } else {
            bool good = true;
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) {
                const u32 code = get<DType::bits, u32>(in, i);
                if constexpr (DType::is_int) {
                    value[i] = ptx::cvt_rn_f32(int(integer<DType>(code)) - scale.zero_point);
                } else {
                    if constexpr (DType::has_nan && !DType::has_negative_zero) good &= code != u32(DType::nan_code);
                    else if constexpr (DType::has_nan || DType::has_inf) good &= (code & ~u32(DType::sign_code)) <= u32(DType::max_code);
                    value[i] = ptx::as_float(float_code<Finite<DType>, Float>(code));
                }
            }
            return good;
        }
    }

private:
    // The bits of a product: exact, rounded to FLOAT, or rounded to odd for a destination of fewer bits.
    static GPUCAST_INLINE u32 product(float x, float factor, u32 last) {
        if constexpr (by_power || u32(Dst::bits) == 32) return ptx::bits(ptx::mul_rn(x, factor));
        else return ptx::bits(ptx::mul_rz(x, factor)) | last;
    }
    template <u32 N, u32 Bytes>
    static GPUCAST_INLINE void put_numbers(Tile<Bytes>& out, u32 i, const u32 (&some)[N]) {
        if constexpr (u32(Dst::bits) == 32) {
            out.word[i] = some[0];
        } else if constexpr (u32(Dst::bits) == 16 && N == 2 && GPUCAST_ARCH >= 800) {
            const float a = ptx::as_float(some[0]), b = ptx::as_float(some[1]);
            out.word[i / 2] = is_upper_half<Dst>() ? ptx::cvt_rn_bf16x2(a, b) : ptx::cvt_rn_f16x2(a, b);
        } else {
            put_lanes<Dst::bits, N>(out, i, cast_lanes<Finite<Float>, Dst>(some, ToWide()));
        }
    }
};

// Rows of complete blocks of a power of two elements, in aligned arrays. A thread takes its elements in parts of one store,
// a block's width apart, so that neighbours write neighbouring bytes.
template <typename F, typename Dst, typename Float, typename Double, u32 Elements, u32 Block, u32 Threads>
GPUCAST_INLINE void dequantize_rows(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef typename F::element DType;
    // The fewest elements that `Multiplier` takes together, and those of one store.
    const u32 least = DType::bits == 6 ? 16 : 4, stored = 128 / Dst::bits;
    const u32 part = stored > least ? stored : least, parts = Elements / part;
    const i64 begin = i64(blockIdx.x) * (Threads * Elements) + threadIdx.x * part;
    if (begin >= n) return;
    i64 at[parts];
    Tile<part * DType::bits / 8> in[parts];
    Scale scale[parts];
#pragma unroll
    for (u32 i = 0; i < parts; ++i) {
        // In place of a part behind the array the first one is done again.
        at[i] = begin + i * (Threads * part) < n ? begin + i * (Threads * part) : begin;
        load_aligned(src + at[i] * i64(DType::bits) / 8, in[i]);
        scale[i] = load_scale<F>(given.scales, given.zero_points, at[i] / Block);
    }
    float global = global_value<F>(given.global_scale, at[0], given.blocks.columns);
#pragma unroll
    for (u32 i = 0; i < parts; ++i) {
        Tile<part * Dst::bits / 8> out = {};
        if constexpr (F::row_scaled) global = global_value<F>(given.global_scale, at[i], given.blocks.columns);
        const Multiplier<F, Dst, Float, Double> multiplier(scale[i], global);
        u8* const to = dst + at[i] * i64(Dst::bits / 8);
        if (multiplier.template tile<part>(in[i], out)) {
            store_aligned(to, out);
            continue;
        }
        ptx::mark_rare();
#pragma unroll 1
        for (u32 j = 0; j < part; ++j) multiplier.put_one(src + at[i] * i64(DType::bits) / 8, to, j);
    }
}

// All other blocks and arrays.
template <typename F, typename Dst, typename Float, typename Double, typename Index, bool single, u32 Elements, u32 Threads>
GPUCAST_INLINE void dequantize_elements(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef typename F::element DType;
    typedef typename WordOf<Dst::bits == 64>::type Word;
    const u32 in_bytes = Elements * DType::bits / 8, out_bytes = Elements * Dst::bits / 8;
    const i64 begin = (i64(blockIdx.x) * Threads + threadIdx.x) * Elements;
    if (begin >= n) return;
    const u32 last = begin + Elements <= n ? Elements : u32(n - begin);
    float global = global_value<F>(given.global_scale, begin, given.blocks.columns);
    const u8* from = src + begin * i64(DType::bits) / 8;
    u8* to = dst + begin * i64(Dst::bits / 8);
    BlockCursor<Index, single> cursor(given, begin, n);
    if (last == Elements && cursor.left() >= Elements) {
        const Multiplier<F, Dst, Float, Double> multiplier(load_scale<F>(given.scales, given.zero_points, cursor.block), global);
        Tile<in_bytes> in;
        Tile<out_bytes> out = {};
        if ((address(from) & (Tile<in_bytes>::piece - 1)) == 0) load_aligned(from, in);
        else load_part(from, 0, 0, 8 * in_bytes, in);
        if (multiplier.template tile<Elements>(in, out)) {
            if ((address(to) & (Tile<out_bytes>::piece - 1)) == 0) {
                store_aligned(to, out);
                return;
            }
            // Such as views into one buffer of all parameters.
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) store_element<Dst::bits>(to + i * (Dst::bits / 8), get<Dst::bits, Word>(out, i));
            return;
        }
    }
    ptx::mark_rare();
#pragma unroll 1
    for (u32 i = 0; i < last; ++i) {
        if constexpr (F::row_scaled) global = global_value<F>(given.global_scale, begin + i, given.blocks.columns);
        const Multiplier<F, Dst, Float, Double> own(load_scale<F>(given.scales, given.zero_points, cursor.block), global);
        own.put_one(from, to, i);
        cursor.next();
    }
}

}  // namespace gpucast
