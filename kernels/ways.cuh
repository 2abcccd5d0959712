// SPDX-License-Identifier: Apache-2.0
// How a tile is cast: a list of ways, each of which knows the pairs, layouts and rules that it takes. The first that takes
// one casts it.
//
// A shortcut by an instruction stands under the rule that it shortens, in to_*.cuh; here are the ones that need more than
// one element. What an instruction does not know (the sign of NaN; NaN where a type has none) is done after it, in a
// branch that is marked as rare. A pair that has an instruction loses its table, where need be under the preprocessor's
// condition that the GPU has it (`without_table` in gpucast/kernel/cast_kernel.py). A way is admitted when all codes of
// 16 bits or fewer, the parity of the host build for every architecture that takes another way, and the prover find it
// equal.
namespace gpucast {

// Whether an integer's low bits are the result.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool keeps_low_bits(Rule) {
    return is_same<Src, Dst>
           || ((Src::is_int || Src::is_bool) && Dst::is_int && Rule::overflow() == Overflow::wrap && u32(Dst::bits) <= u32(Src::bits));
}

// ---- the ways: `SrcBits` are those of a source element in memory; `out` is zero before ----

// The words as they are: both types have the same codes.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Copied {
    typedef Tile<Elements * Dst::bits / 8> Out;
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == Dst::bits && !Src::is_bool && keeps_low_bits<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Out& out) {
#pragma unroll
        for (u32 i = 0; i < Out::words; ++i) out.word[i] = in.word[i];
    }
};

// Integers and booleans in bytes to integers of fewer bits: the low bits of each byte.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct LowBits {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 8 && Dst::bits < 8 && keeps_low_bits<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) {
            u32 lanes = in.word[i / 4];
            if constexpr (Src::is_bool) lanes = nonzero_lanes(lanes);
            put_lanes<Dst::bits, 4>(out, i, lanes & repeated<8>(u32(Dst::mask)));
        }
    }
};

// Booleans to the codes of 0 and 1, by a mask in place of a table.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Booleans {
    static GPUCAST_CONSTANT bool takes() { return SrcBits == 8 && Src::is_bool && has_bool_codes<Dst>(); }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) put_lanes<Dst::bits, 4>(out, i, bool_codes<Src, Dst>(in.word[i / 4], Rule()));
    }
};

// Float8 to integers of 2 bits by the halves that its conversion gives, sixteen at a time.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct TwoBitIntegers {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 8 && Src::is_float && Dst::bits == 2 && Elements % 16 == 0 && has_integer_lanes<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 4; i += 4) {
            out.word[i / 4] = ptx::prmt(two_bit_integers<Src>(in.word[i], in.word[i + 1]),
                                        two_bit_integers<Src>(in.word[i + 2], in.word[i + 3]), 0x7632);
        }
    }
};

// Float8 and FLOAT8E8M0 to integers of 4 bits or fewer by the same halves, four at a time.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct SmallIntegers {
    static GPUCAST_CONSTANT bool takes() { return SrcBits == 8 && has_integer_lanes<Src, Dst>(Rule()); }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) put_lanes<Dst::bits, 4>(out, i, integer_lanes<Src, Dst>(in.word[i / 4]));
    }
};

// Bytes to booleans: whether each is zero, four at a time.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct BytesToBool {
    typedef Tile<Elements * Dst::bits / 8> Out;
    static GPUCAST_CONSTANT bool takes() { return SrcBits == 8 && Src::bits == 8 && Dst::is_bool; }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Out& out) {
#pragma unroll
        for (u32 i = 0; i < Out::words; ++i) out.word[i] = bool_lanes<Src>(in.word[i]);
    }
};

// Integers of 4 bits to bytes: the nibbles of a word moved apart, signs copied.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct NibblesToBytes {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 4 && Src::is_int && Dst::is_int && Dst::bits == 8 && Rule::overflow() == Overflow::wrap;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 4; i += 2) bytes_of_nibbles<Src>(in.word[i / 2], out.word[i], out.word[i + 1]);
    }
};

// Codes of 4 bits to integers of 2: the low bits of each nibble moved together.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct NibblesToTwoBits {
    static GPUCAST_CONSTANT bool takes() {
        return GPUCAST_ARCH >= 1000 && SrcBits == 4 && (Src::is_int || is_float4<Src>()) && Dst::is_int
               && Dst::bits == 2 && Elements % 16 == 0 && Rule::overflow() == Overflow::wrap
               && Rule::rounding() == Rounding::toward_zero;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 16; ++i) {
            out.word[i] = ptx::prmt(low_bits_of_nibbles<Src>(in.word[2 * i]), low_bits_of_nibbles<Src>(in.word[2 * i + 1]), 0x7531);
        }
    }
};

// Floats of 6 bits to types of 6 bits or fewer by logic on their bit planes, sixteen at a time (bit_planes.cuh).
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct BitPlanes {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 6 && Elements % 16 == 0 && has_planes<Src, Dst>();
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 16; ++i) cast_planes<Src, Dst>(in.word + 3 * i, out.word + Dst::bits / 2 * i, Rule());
    }
};

// Codes of 4 bits by a table of sixteen bytes in registers, in place of one in shared memory (table.cuh).
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct NibbleLookup {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 4 && !is_same<Src, Dst> && (Dst::bits < 8 || has_nibble_codes<Src, Dst>());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 8) {
            u32 low, high;
            look_up_nibbles<Src, Dst>(in.word[i / 8], low, high, Rule());
            put_lanes<Dst::bits, 4>(out, i, low);
            put_lanes<Dst::bits, 4>(out, i + 4, high);
        }
    }
};

// Integers of 4 bits to FLOAT16 or BFLOAT16: as the fraction of a power of two they are floats already.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct NibblesToHalves {
    static GPUCAST_CONSTANT bool takes() { return SrcBits == 4 && Src::is_int && has_nibble_halves<Dst>(); }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 2; i += 4) halves_of_nibbles<Src, Dst>(in.word[i / 4], out.word + i);
    }
};

// Any rounding but to nearest, ties to even, one element at a time by the rule itself. All ways behind this one round to
// nearest even.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct OneByOne {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    static GPUCAST_CONSTANT bool takes() { return rounds_by_rule<Dst, Rule>(); }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) put<Dst::bits>(out, i, cast_code<Src, Dst>(get<SrcBits, Word>(in, i), Rule()));
    }
};

// Integers of 8 bits to FLOAT16: as the fraction of a power of two they are floats already.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct BytesToHalves {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 8 && Src::is_int && Src::bits == 8 && is_float16<Dst>();
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 2; i += 2) halves_of_bytes<Src>(in.word[i / 2], out.word[i], out.word[i + 1]);
    }
};

// Float8 to FLOAT16, BFLOAT16 and FLOAT by the conversions that read it; the sign of NaN is mended afterwards.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Float8ToWider {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 8 && Src::bits == 8 && has_unpacking<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        const u32 words = Dst::bits / 8;
        u32 nan = 0, found[Elements / 4][words];
#pragma unroll
        for (u32 i = 0; i < Elements / 4; ++i) {
            unpack<Src, Dst>(in.word[i], found[i]);
            nan |= float8_nan_bits<Src>(in.word[i]);
        }
        if ((nan & repeated<8>(0x80)) != 0) {
            ptx::mark_rare();
#pragma unroll
            for (u32 i = 0; i < Elements / 4; ++i) finish_unpacked<Src, Dst>(in.word[i], found[i]);
        }
#pragma unroll
        for (u32 i = 0; i < Elements / 4 * words; ++i) out.word[i] = found[i / words][i % words];
    }
};

// FLOAT4E2M1 to the same, by the conversion that reads it.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Float4ToWider {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 4 && is_float4<Src>() && has_conversion<Src>() && has_unpacking<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        u32 halves[4];
#pragma unroll
        for (u32 i = 0; i < Elements / 2; ++i) {
            if (i % 4 == 0) {
                if constexpr (unpacks_to_pairs<Src, Dst>()) ptx::cvt_bf16x8_e2m1(in.word[i / 4], halves);
                else ptx::cvt_f16x8_e2m1(in.word[i / 4], halves);
            }
            if constexpr (is_float16<Dst>() || unpacks_to_pairs<Src, Dst>()) {
                out.word[i] = halves[i % 4];
            } else {
                float low, high;
                ptx::cvt_f32_f16x2(halves[i % 4], low, high);
                put<Dst::bits>(out, 2 * i, ptx::bits(low) >> (32 - Dst::bits));
                put<Dst::bits>(out, 2 * i + 1, ptx::bits(high) >> (32 - Dst::bits));
            }
        }
    }
};

// Floats of 6 and 4 bits to the same: by a conversion where the GPU has one, else by a product (`halves_of_small`).
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct SmallToWider {
    static GPUCAST_CONSTANT bool takes() { return SrcBits <= 6 && has_unpacking<Src, Dst>(Rule()); }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        const u32 words = Dst::bits / 8;
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) {
            u32 found[words];
            unpack<Src, Dst>(four_codes<SrcBits>(in, i), found);
#pragma unroll
            for (u32 j = 0; j < words; ++j) out.word[i / 4 * words + j] = found[j];
        }
    }
};

// Float8 and float6 to FLOAT4E2M1, by the conversions that read the one and write the other.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Float8ToFloat4 {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 8 && Elements % 8 == 0 && has_float8_halves<Src, Dst>();
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 8) {
            out.word[i / 8] = float4_of_float8<Src>(in.word[i / 4], in.word[i / 4 + 1]);
        }
    }
};

// FLOAT8E8M0 to FLOAT4E2M1: its codes are the exponents of floats, which the conversion takes.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct PowersToFloat4 {
    static GPUCAST_CONSTANT bool takes() {
        return Src::is_e8m0 && Elements % 8 == 0 && is_float4<Dst>() && has_conversion<Dst>();
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 8; ++i) out.word[i] = float4_of_powers(in.word[2 * i], in.word[2 * i + 1]);
    }
};

// FLOAT16 and BFLOAT16 to floats of 8 bits or fewer by the conversions that take pairs; the sign of NaN is mended
// afterwards, or NaN before where the type has none.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Pairs {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 16 && has_pair_conversion<Src, Dst>(Rule()) && Elements % (Dst::bits == 4 ? 8 : 4) == 0;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        convert(in, out);
        u32 any = 0;
        if constexpr (Dst::bits == 8) {
#pragma unroll
            for (u32 i = 0; i < Elements / 4; ++i) any |= nan_bits<Dst>(out.word[i]);
            any &= repeated<8>(0x80);
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements / 2; ++i) any = is_float16<Src>() ? ptx::max_nan_f16x2(any, in.word[i]) : ptx::max_nan_bf16x2(any, in.word[i]);
            any = nan_bits<Src>(any) & repeated<16>(0x8000);
        }
        if (any == 0) return;
        ptx::mark_rare();
        if constexpr (Dst::bits == 8) {
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                const u32 codes[4] = {get<16, u32>(in, i), get<16, u32>(in, i + 1), get<16, u32>(in, i + 2), get<16, u32>(in, i + 3)};
                out.word[i / 4] = finished_lanes<Src, Dst>(out.word[i / 4], codes);
            }
        } else {
            Tile<Elements * SrcBits / 8> numbers;
#pragma unroll
            for (u32 i = 0; i < Elements / 2; ++i) numbers.word[i] = pair_without_nan<Src>(in.word[i]);
            out = {};
            convert(numbers, out);
        }
    }

private:
    static GPUCAST_INLINE void convert(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        if constexpr (Dst::bits == 4) {
#pragma unroll
            for (u32 i = 0; i < Elements / 8; ++i) {
                out.word[i] = is_float16<Src>() ? ptx::cvt_e2m1x8_f16(in.word + 4 * i) : ptx::cvt_e2m1x8_bf16(in.word + 4 * i);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                put_lanes<Dst::bits, 4>(out, i, converted_pairs<Src, Dst>(in.word[i / 2], in.word[i / 2 + 1]));
            }
        }
    }
};

// BFLOAT16 to FLOAT8E8M0 by the conversion that takes pairs.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct PairsToPowers {
    static GPUCAST_CONSTANT bool takes() {
        return GPUCAST_PAIRS && SrcBits == 16 && is_upper_half<Src>() && has_power_conversion<Dst>(Rule()) && Elements % 4 == 0;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements / 4; ++i) {
            const u32 low = ptx::max_nan_bf16x2(in.word[2 * i], 0), high = ptx::max_nan_bf16x2(in.word[2 * i + 1], 0);
            out.word[i] = Rule::round_mode() == RoundMode::up ? ptx::cvt_rp_ue8m0x4_bf16(low, high) : ptx::cvt_rz_ue8m0x4_bf16(low, high);
        }
    }
};

// Anything that a float stands for to FLOAT4E2M1, by the conversion that packs eight.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct ToFloat4 {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    static GPUCAST_CONSTANT bool takes() {
        return is_float4<Dst>() && has_conversion<Dst>() && has_float32<Src>() && SrcBits >= 8;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        const u32 count = Elements < 8 ? Elements : 8;
#pragma unroll
        for (u32 i = 0; i < Elements; i += count) {
            Word codes[count];
            float some[count], x[8] = {};
#pragma unroll
            for (u32 j = 0; j < count; ++j) codes[j] = get<SrcBits, Word>(in, i + j);
            floats_without_nan<Src>(codes, some);
#pragma unroll
            for (u32 j = 0; j < count; ++j) x[j] = some[j];
            put<4 * count>(out, i / count, ptx::cvt_e2m1x8(x));
        }
    }
};

// Types with NaN to FLOAT16 and BFLOAT16, by the conversions that pack two; the sign of NaN is mended afterwards.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct ToHalves {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    static GPUCAST_CONSTANT bool takes() {
        return has_packing<Dst>(Rule()) && Dst::bits == 16 && has_float32<Src>() && Src::has_nan && !is_same<Src, Dst>;
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        // One test for all of the tile, because NaN is rare.
        Word codes[Elements / 2][2];
        u32 nan = 0;
#pragma unroll
        for (u32 i = 0; i < Elements / 2; ++i) {
            codes[i][0] = get<SrcBits, Word>(in, 2 * i);
            codes[i][1] = get<SrcBits, Word>(in, 2 * i + 1);
            out.word[i] = packed_lanes<Src, Dst>(codes[i]);
            nan |= nan_bits<Dst>(out.word[i]);
        }
        if ((nan & repeated<16>(0x8000)) != 0) {
            ptx::mark_rare();
#pragma unroll
            for (u32 i = 0; i < Elements / 2; ++i) out.word[i] = finished_lanes<Src, Dst>(out.word[i], codes[i]);
        }
    }
};

// FLOAT16 and BFLOAT16 to floats of 8 bits or fewer, two halves of a word at a time.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Halves {
    static GPUCAST_CONSTANT bool takes() {
        return SrcBits == 16 && has_halves<Src, Dst>() && !has_instruction<Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) {
            put_lanes<Dst::bits, 4>(out, i, halves_lanes<Src, Dst>(in.word[i / 2], in.word[i / 2 + 1], Rule()));
        }
    }
};

// The same, as if no half were NaN; tiles with one are cast again.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct HalvesWithoutNaN {
    static GPUCAST_CONSTANT bool takes() {
        return GPUCAST_ARCH >= 1000 && SrcBits == 16 && Dst::has_nan && has_halves<Src, Dst>()
               && !has_instruction<Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        // Infinities and NaN times zero are NaN.
        u32 nan = 0;
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) {
            nan = halves_fma<Src>(in.word[i / 2 + 1], 0, halves_fma<Src>(in.word[i / 2], 0, nan));
            put_lanes<Dst::bits, 4>(out, i, halves_lanes<Src, Dst, false>(in.word[i / 2], in.word[i / 2 + 1], Rule()));
        }
        if ((nan & repeated<16>(0x7fff)) != 0) {
            ptx::mark_rare();
            out = {};
            Halves<Src, Dst, SrcBits, Elements, Rule>::tile(in, out);
        }
    }
};

// Integers of 16 bits to floats of 8 bits or fewer, by FLOAT16 as the compute type, two at a time.
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct IntegerHalves {
    static GPUCAST_CONSTANT bool takes() {
        return has_integer_halves<Src, Dst>() && !has_instruction<Dst>(Rule()) && !has_next_bias<Src, Dst>(Rule());
    }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
#pragma unroll
        for (u32 i = 0; i < Elements; i += 4) {
            put_lanes<Dst::bits, 4>(out, i, integer_halves_lanes<Src, Dst>(in.word[i / 2], in.word[i / 2 + 1], Rule()));
        }
    }
};

// Any pair: as many elements at a time as fill a word of the destination (`cast_lanes`).
template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
struct Lanes {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    static GPUCAST_CONSTANT bool takes() { return true; }
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        const u32 count = Group<Dst::bits, Elements>::elements;
#pragma unroll
        for (u32 i = 0; i < Elements; i += count) {
            Word codes[count];
#pragma unroll
            for (u32 j = 0; j < count; ++j) codes[j] = get<SrcBits, Word>(in, i + j);
            if constexpr (Dst::bits > 16) {
                put<Dst::bits>(out, i, cast_code<Src, Dst>(codes[0], Rule()));
            } else {
                put_lanes<Dst::bits, count>(out, i, cast_lanes<Src, Dst>(codes, Rule()));
            }
        }
    }
};

// ---- the list ----

template <template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule> class... Ways>
struct FirstOf;
template <
    template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule> class Way,
    template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule> class... Others>
struct FirstOf<Way, Others...> {
    template <typename Src, typename Dst, u32 SrcBits, u32 Elements, typename Rule>
    static GPUCAST_INLINE void tile(const Tile<Elements * SrcBits / 8>& in, Tile<Elements * Dst::bits / 8>& out) {
        typedef Way<Src, Dst, SrcBits, Elements, Rule> This;
        if constexpr (This::takes()) This::tile(in, out);
        else FirstOf<Others...>::template tile<Src, Dst, SrcBits, Elements, Rule>(in, out);
    }
};

typedef FirstOf<
    Copied, LowBits, Booleans, TwoBitIntegers, SmallIntegers, BytesToBool,
    NibblesToBytes, NibblesToTwoBits, BitPlanes, NibbleLookup, NibblesToHalves, OneByOne,
    BytesToHalves, Float8ToWider, Float4ToWider, SmallToWider, Float8ToFloat4, PowersToFloat4,
    Pairs, PairsToPowers, ToFloat4, ToHalves, HalvesWithoutNaN, Halves, IntegerHalves, Lanes>
    TileWays;

}  // namespace gpucast
