// SPDX-License-Identifier: Apache-2.0
// Casts of a few values at a time, for users' kernels: gpucast/user_kernels/device_functions.py gives each a name.
namespace gpucast {

// Values of 32 or 64 bits, aligned for vector accesses. Those of fewer bits come in an unsigned integer instead, packed as
// in memory: the first one in its lowest bits.
template <typename T, u32 N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
    T at[N];
};

// The elements of the tile that N values are a part of: as many as the fast paths of small types cast together.
template <typename Src, typename Dst, u32 N>
GPUCAST_CONSTANT u32 tile_of_values() {
    if constexpr (u32(Src::bits) == 4) return 8;
    const bool small = u32(Src::bits) <= 8 || u32(Dst::bits) < 8 || (u32(Src::bits) == 16 && u32(Dst::bits) == 8);
    return small && N < 4 ? 4 : N;
}

// Whether codes of a small float, for which there is no instruction and here no table, become FLOATs first, which have
// all of its values. Not where a FLOAT is the result and its infinity is to saturate.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool goes_by_float(Rule) {
    const bool saturates = Src::has_inf && u32(Dst::bits) == 32 && Rule::overflow() == Overflow::saturate;
    return Src::is_float && u32(Src::bits) <= 8 && u32(Dst::bits) >= 8 && !is_same<Src, Dst> && !has_float32<Src>() && !saturates;
}

template <typename Src, typename Float>
GPUCAST_INLINE u32 small_as_float(u32 code) {
    const u32 found = float_code<Src, Float>(code), sign = u32(Float::sign_code);
    if constexpr (Src::has_inf) {
        // Of NaN that keeps the fraction.
        if ((found & ~sign) > u32(Float::inf_code)) return (found & sign) | u32(Float::nan_code);
    }
    return found;
}

template <typename Src, typename Dst, typename Float, typename Word, typename Rule>
GPUCAST_INLINE Word cast_value(Word code, Rule rule) {
    if constexpr (goes_by_float<Src, Dst>(rule)) return cast_code<Float, Dst>(Word(small_as_float<Src, Float>(u32(code))), rule);
    else return cast_code<Src, Dst>(code, rule);
}

template <u32 Bits, u32 N, typename To, u32 Bytes>
GPUCAST_INLINE To held(const Tile<Bytes>& tile) {
    To values;
    memcpy(&values, tile.word, sizeof values);
    // The rest of the tile may lie in the upper bits.
    if constexpr (N * Bits < 8 * sizeof(To)) values &= To((u64(1) << (N * Bits)) - 1);
    return values;
}

template <typename Src, typename Dst, typename Float, u32 N, typename To, typename From, typename Rule>
GPUCAST_INLINE To cast_values(const From& values, [[maybe_unused]] Rule rule) {
    constexpr u32 count = tile_of_values<Src, Dst, N>();
    Tile<count * Src::bits / 8> in = {};
    Tile<count * Dst::bits / 8> out = {};
    memcpy(in.word, &values, sizeof values);
    // Once more in the next byte: the assembler of CUDA 12.9 crashes at conversions of a word that is known to be a byte.
    if constexpr (N == 2 && is_float4<Src>() && has_conversion<Src>()) in.word[0] *= 0x0101;
    if constexpr (goes_by_float<Src, Dst>(rule) && !has_unpacking<Src, Dst>(rule)) {
        Tile<4 * count> floats;
#pragma unroll
        for (u32 i = 0; i < count; ++i) floats.word[i] = small_as_float<Src, Float>(get<Src::bits, u32>(in, i));
        Arithmetic<Float, Dst, 32, Rule>().template tile<count>(floats, out, 0);
    } else {
        Arithmetic<Src, Dst, Src::bits, Rule>().template tile<count>(in, out, 0);
    }
    return held<Dst::bits, N, To>(out);
}

// The same at random: values `index` to `index` + N - 1 of an array.
template <typename Src, typename Dst, u32 N, typename To, typename From, typename Rule>
GPUCAST_INLINE To cast_values(const From& values, const Random& random, i64 index, Rule rule) {
    typedef typename WordOf<(u32(Src::bits) > 32)>::type Word;
    constexpr u32 count = u32(Dst::bits) < 8 || N == 4 ? 4 : N, group = Group<Dst::bits, count>::elements;
    Tile<count * (u32(Src::bits) < 8 ? 8 : u32(Src::bits)) / 8> in = {};
    Tile<count * Dst::bits / 8> out = {};
    memcpy(in.word, &values, sizeof values);
    u32 words[4];
    random.words<4>(index, words);
#pragma unroll
    for (u32 i = 0; i < count; i += group) {
        Word codes[group];
        u32 some[group];
#pragma unroll
        for (u32 j = 0; j < group; ++j) {
            codes[j] = get<Src::bits, Word>(in, i + j);
            some[j] = words[i + j];
        }
        put_lanes<Dst::bits, group>(out, i, stochastic_lanes<Src, Dst>(codes, some, rule));
    }
    return held<Dst::bits, N, To>(out);
}

}  // namespace gpucast
