// SPDX-License-Identifier: Apache-2.0
// Casts from file to file, checksums, and statistics of codes: what a conversion of files needs around its casts.
#define _FILE_OFFSET_BITS 64
#include <unistd.h>

namespace gpucast {

// The largest magnitude of codes, and how many are zero, of either sign.
template <typename Code>
inline void look(const Code* __restrict__ src, u32 n, u32 magnitude, u32* stats) {
    u32 top = 0, zeros = 0;
    for (u32 i = 0; i < n; ++i) {
        const u32 a = src[i] & magnitude;
        top = a > top ? a : top;
        zeros += a == 0;
    }
    stats[0] = top;
    stats[1] = zeros;
}

static bool read_all(int file, u8* bytes, u64 count, u64 position) {
    while (count) {
        const ssize_t got = pread(file, bytes, count, off_t(position));
        if (got <= 0) return false;
        bytes += got, position += u64(got), count -= u64(got);
    }
    return true;
}

static bool write_all(int file, const u8* bytes, u64 count, u64 position) {
    while (count) {
        const ssize_t done = pwrite(file, bytes, count, off_t(position));
        if (done <= 0) return false;
        bytes += done, position += u64(done), count -= u64(done);
    }
    return true;
}

static void look8(const void* src, u32 n, u32 magnitude, u32* stats) {
    look(static_cast<const u8*>(src), n, magnitude, stats);
}
static void look16(const void* src, u32 n, u32 magnitude, u32* stats) {
    look(static_cast<const u16*>(src), n, magnitude, stats);
}
static void look32(const void* src, u32 n, u32 magnitude, u32* stats) {
    look(static_cast<const u32*>(src), n, magnitude, stats);
}

// The sum of words, as the sums of their low and of their high halves.
static void sum_words(const u8* bytes, u64 words, u64* sums) {
    u64 low = 0, high = 0;
    for (u64 i = 0; i < words; ++i) {
        u64 word;
        __builtin_memcpy(&word, bytes + 8 * i, sizeof word);
        low += word & 0xffffffff;
        high += word >> 32;
    }
    sums[0] = low;
    sums[1] = high;
}

// A cast that counts: casts.hpp defines them, and what they count.
typedef void CountedCast(const void*, void*, u64, u32*);

// The position of the first element in a file, and the bytes of an element.
struct FilePosition {
    int file;
    u32 itemsize;
    u64 position;
};

// Casts n elements of one file to another by way of `buffer`, which holds `block` elements of both; block is a multiple
// of 8. stats and sums are those of all elements. Returns 0 where a system call failed or was interrupted.
static int cast_file(CountedCast* cast, FilePosition src, FilePosition dst, u32 n, u8* buffer, u32 block,
                             u32* stats, u64* sums) {
    u8* const results = buffer + u64(block) * src.itemsize;
    stats[0] = stats[1] = stats[2] = 0;
    sums[0] = sums[1] = 0;
    for (u32 i = 0; i < n; i += block) {
        const u32 count = n - i < block ? n - i : block, bytes = count * dst.itemsize;
        u32 here[3];
        u64 here_sums[2];
        if (!read_all(src.file, buffer, u64(count) * src.itemsize, src.position + u64(i) * src.itemsize)) return 0;
        cast(buffer, results, count, here);
        // Fill the last word with zeros.
        __builtin_memset(results + bytes, 0, -bytes & 7);
        sum_words(results, (bytes + 7) / 8, here_sums);
        if (!write_all(dst.file, results, bytes, dst.position + u64(i) * dst.itemsize)) return 0;
        stats[0] = stats[0] > here[0] ? stats[0] : here[0];
        stats[1] += here[1];
        stats[2] += here[2];
        sums[0] += here_sums[0];
        sums[1] += here_sums[1];
    }
    return 1;
}

}  // namespace gpucast
