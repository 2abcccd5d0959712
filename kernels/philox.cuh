// SPDX-License-Identifier: Apache-2.0
// Random bits by counting: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
// 3" (SC 2011). The 32 bits of element i depend on the seed, the offset and i alone, not on the thread that casts it.
namespace gpucast {

struct RandomBlock {
    u32 word[4];
};

// The key is `seed`, the counter `high` and `low` together, low words first.
GPUCAST_INLINE RandomBlock philox(u64 seed, u64 low, u64 high = 0) {
    u32 a = u32(low), b = u32(low >> 32), c = u32(high), d = u32(high >> 32);
    u32 key = u32(seed), other = u32(seed >> 32);
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        const u64 of_a = ptx::mul_wide(0xd2511f53, a), of_c = ptx::mul_wide(0xcd9e8d57, c);
        a = u32(of_c >> 32) ^ b ^ key;
        b = u32(of_c);
        c = u32(of_a >> 32) ^ d ^ other;
        d = u32(of_a);
        key += 0x9e3779b9;
        other += 0xbb67ae85;
    }
    return {{a, b, c, d}};
}

// The random words of an array: element i has word (offset + i) % 4 of block (offset + i) / 4.
struct Random {
    u64 seed, offset;

    // The block of an element. The sum has 65 bits, its quotient 63: the counter's upper half is always zero.
    GPUCAST_INLINE u64 block(i64 i) const {
        return (offset >> 2) + u64(i >> 2) + (((u32(offset) & 3) + (u32(i) & 3)) >> 2);
    }
    GPUCAST_INLINE u32 place(i64 i) const { return (u32(offset) + u32(i)) & 3; }

    GPUCAST_INLINE u32 one(i64 i) const {
        const RandomBlock found = philox(seed, block(i));
        const u32 at = place(i);
        const u32 even = at & 2 ? found.word[2] : found.word[0], odd = at & 2 ? found.word[3] : found.word[1];
        return at & 1 ? odd : even;
    }

    // The words of N elements from element i on; those of elements before the array (i below 0) are arbitrary.
    //
    // Where i does not begin a block, the words are shifted by as many places; this is the same for all threads whose i
    // differ by multiples of 4, so no warp diverges.
    template <u32 N>
    GPUCAST_INLINE void words(i64 i, u32 (&words)[N]) const {
        static_assert(N % 4 == 0, "whole blocks");
        const u64 first = block(i);
        const u32 skip = place(i);
        u32 all[N + 4];
#pragma unroll
        for (u32 j = 0; j < N / 4; ++j) put(philox(seed, first + j), all + 4 * j);
        if (skip != 0) {
            put(philox(seed, first + N / 4), all + N);
#pragma unroll
            for (u32 step = 2; step != 0; step >>= 1) {
                if ((skip & step) == 0) continue;
#pragma unroll
                for (u32 j = 0; j + step < N + 4; ++j) all[j] = all[j + step];
            }
        }
#pragma unroll
        for (u32 j = 0; j < N; ++j) words[j] = all[j];
    }

private:
    static GPUCAST_INLINE void put(const RandomBlock& block, u32* to) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) to[j] = block.word[j];
    }
};

}  // namespace gpucast
