// SPDX-License-Identifier: Apache-2.0
// Casts of flat arrays that round at random, with the words that philox.cuh gives the elements.
namespace gpucast {

// Blocks of four words that are computed together: they stay in the first-level cache.
enum : u64 { blocks_together = 128 };

// The words of blocks from the first on.
static __attribute__((noinline)) void fill_words(u32* __restrict__ words, u64 blocks, u64 seed, u64 first) {
    for (u64 i = 0; i < blocks; ++i) {
        const RandomBlock block = philox(seed, first + i);
        for (u64 j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
    }
}

// Casts n elements; the words begin in the block `first`, behind `skip` of its words.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void cast_stochastic(const void* from, void* to, u64 n, u64 seed, u64 first, u64 skip) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* __restrict__ dst = static_cast<Stored<Dst>*>(to);
    u32 all[4 * blocks_together];
    while (n) {
        const u64 most = 4 * blocks_together - skip, count = n < most ? n : most;
        fill_words(all, (skip + count + 3) / 4, seed, first);
        const u32* __restrict__ words = all + skip;
        for (u64 i = 0; i < count; ++i) {
            const u32 code = convert_stochastic<Src, Dst>(WordFor<Src, Dst>(src[i]), words[i], Rule());
            dst[i] = Stored<Dst>(code & u32(Dst::mask));
        }
        src += count, dst += count, n -= count, first += blocks_together, skip = 0;
    }
}

}  // namespace gpucast

#define GPUCAST_STOCHASTIC_CAST(NAME, SRC, DST, ...)                                                   \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned long long seed,          \
                     unsigned long long first, unsigned long long skip) {                               \
        const gpucast::Exactly exactly;                                                                 \
        gpucast::cast_stochastic<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n, seed, first, skip); \
    }
