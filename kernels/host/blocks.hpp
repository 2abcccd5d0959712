// SPDX-License-Identifier: Apache-2.0
// Blocks that share a scale: how loops run over them, their extremes, and counts. The codes of their quotients are in codes.hpp
// and doubles.hpp, the numbers that codes stand for in products.hpp. gpucast/quantization/block_loops.py describes the structs.
namespace gpucast {

typedef int i32;

// As in gpucast/quantization/block_grid.py: an array of three dimensions, each cut into blocks.
struct Blocks {
    u64 shape[3], lengths[3], grid[3];
};

// An array, and the bytes of an element.
struct Array {
    u8* first;
    u64 itemsize;
};

// Works on n adjacent elements in blocks of a length, of the first of which `skip` elements come before; `of` belongs to
// the blocks, `more` to the whole array. Of length 1 the same `skip` blocks come again in each further row of so many elements.
typedef void Run(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more);

// The part of an array that a call works on: some columns of some rows.
struct EachRun {
    Run* run;
    Array src, dst, of;
    void* more;
    Blocks blocks;
    u64 first_row, last_row, first_column, last_column;
};

static int each_run(void* arguments) {
    const EachRun& call = *static_cast<const EachRun*>(arguments);
    const u64 *n = call.blocks.shape, *lengths = call.blocks.lengths, *grid = call.blocks.grid;
    const u64 begin = call.first_column, length = lengths[2], count = call.last_column - begin;
    // Rows that are adjacent and have the same blocks are worked on together.
    const bool are_alike = length == 1 && count == n[2];
    for (u64 row = call.first_row, rows = 1; row < call.last_row; row += rows) {
        const u64 plane = row / n[1], within = row % n[1], next = plane * n[1] + (within / lengths[1] + 1) * lengths[1];
        const u64 block = (plane / lengths[0] * grid[1] + within / lengths[1]) * grid[2] + begin / length;
        const u64 at = row * n[2] + begin, last = next < (plane + 1) * n[1] ? next : (plane + 1) * n[1];
        if (are_alike) rows = (last < call.last_row ? last : call.last_row) - row;
        call.run(call.src.first + at * call.src.itemsize, call.dst.first + at * call.dst.itemsize, rows * count,
                 length == 1 ? count : begin % length, length, call.of.first + block * call.of.itemsize, call.more);
    }
    return 0;
}

// Lengths of blocks so short that a loop for any length would take longer to start than to run. The shorter one is that
// of two scales.
enum : u64 { short_block = 32, shorter_block = 16 };
// How many blocks of one element each are brought together, as many as the stack of a small thread holds; and the rows that are
// worked on with these, before the next ones: so many that this takes less time, so few that memory is read in its order.
enum : u64 { long_block = 1024, rows_together = 32 };

// What belongs to some blocks, up to `long_block`, brought together: Work::row takes a row of blocks of one element each. A kind of
// work may have its own `Together`, which may take adjacent blocks of a length, too.
template <typename Work, typename = void>
struct TogetherOf {
    enum : bool { takes_adjacent = 0 };
    TogetherOf(typename Work::OfBlock* own_, u64) : own(own_) {}
    GPUCAST_INLINE void row(const typename Work::Source* src, typename Work::Result* dst, u64 n, void* more) {
        Work::row(src, dst, n, own, more);
    }
    typename Work::OfBlock* const own;
};
template <typename Work>
struct TogetherOf<Work, decltype(void(sizeof(typename Work::Together)))> : Work::Together {
    using Work::Together::Together;
};

// A Run that calls Work::block for each block, with a loop of its own for short blocks.
template <typename Work>
inline void run_blocks(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const typename Work::Source* __restrict__ src = static_cast<const typename Work::Source*>(from);
    typename Work::Result* __restrict__ dst = static_cast<typename Work::Result*>(to);
    typename Work::OfBlock* own = static_cast<typename Work::OfBlock*>(of);
    if (length == 1) {
        for (u64 first = 0; first < n; first += rows_together * skip) {
            const u64 end = n - first < rows_together * skip ? n : first + rows_together * skip;
            for (u64 begin = 0; begin < skip; begin += long_block) {
                const u64 count = skip - begin < long_block ? skip - begin : u64(long_block);
                TogetherOf<Work> all(own + begin, count);
                for (u64 at = first + begin; at < end; at += skip) all.row(src + at, dst + at, count, more);
            }
        }
        return;
    }
    if constexpr (TogetherOf<Work>::takes_adjacent) {
        if (!skip && n % length == 0 && (length == shorter_block || length == short_block || length == 4 * short_block)) {
            const u64 blocks = n / length;
            for (u64 begin = 0; begin < blocks; begin += long_block) {
                const u64 count = blocks - begin < long_block ? blocks - begin : u64(long_block);
                TogetherOf<Work>(own + begin, count).adjacent(src + begin * length, dst + begin * length, count, length, more);
            }
            return;
        }
    }
    u64 start = 0, next = length - skip;
    for (; start < n; start = next, next += length, ++own) {
        const u64 end = next < n ? next : n, count = end - start;
        if (count == short_block) {
            Work::block(src + start, dst + start, short_block, own, more);
        } else if (count == Work::least) {
            Work::block(src + start, dst + start, Work::least, own, more);
        } else {
            Work::block(src + start, dst + start, count, own, more);
        }
    }
}

// Adjacent blocks of one length, as each_run has them.
template <typename OfBlock>
struct BlockOf {
    OfBlock* of;
    u64 skip, length;

    // Of the element of that index.
    GPUCAST_INLINE OfBlock& operator[](u64 i) const { return of[(i + skip) / length]; }
};

// Calls each(i, end, block) for the elements of the blocks that lie in [0, count), `start` elements behind the first.
template <typename OfBlock, typename Each>
GPUCAST_INLINE void each_block(const BlockOf<OfBlock>& block, u64 start, u64 count, const Each& each) {
    // A division for each block would take longer than a short one.
    const u64 first = start + block.skip;
    OfBlock* own = block.of + first / block.length;
    u64 left = block.length - first % block.length;
    for (u64 i = 0; i < count; left = block.length, ++own) {
        const u64 end = left < count - i ? i + left : count;
        each(i, end, *own);
        i = end;
    }
}

// Elements that become numbers together: they stay in the first-level cache.
enum : u64 { numbers = 512 };

// ---- extremes ----

#if defined(__clang__)
#define GPUCAST_TURNED(a, by) \
    __builtin_shufflevector(a, a, by, by + 1, by + 2, by + 3, by + 4, by + 5, by + 6, by + 7, (by + 8) % 16, (by + 9) % 16, \
                            (by + 10) % 16, (by + 11) % 16, (by + 12) % 16, (by + 13) % 16, (by + 14) % 16, (by + 15) % 16)
#else
#define GPUCAST_TURNED(a, by) \
    __builtin_shuffle(a, Sixteen{by, by + 1, by + 2, by + 3, by + 4, by + 5, by + 6, by + 7, (by + 8) % 16, (by + 9) % 16, \
                                 (by + 10) % 16, (by + 11) % 16, (by + 12) % 16, (by + 13) % 16, (by + 14) % 16, (by + 15) % 16})
#endif
template <typename Source>
GPUCAST_INLINE Source largest_of_sixteen(const Source* src, Source mask) {
    typedef Source Sixteen __attribute__((vector_size(16 * sizeof(Source))));
    Sixteen top, turned;
    __builtin_memcpy(&top, src, sizeof top);
    top &= mask;
    turned = GPUCAST_TURNED(top, 8), top = top > turned ? top : turned;
    turned = GPUCAST_TURNED(top, 4), top = top > turned ? top : turned;
    turned = GPUCAST_TURNED(top, 2), top = top > turned ? top : turned;
    turned = GPUCAST_TURNED(top, 1), top = top > turned ? top : turned;
    return top[0];
}
#undef GPUCAST_TURNED

// The largest magnitude of a block so far, as a code.
template <typename Src>
struct Largest {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef Stored<Src> OfBlock;
    enum : u64 { least = shorter_block };
    static GPUCAST_INLINE void row(const Source* __restrict__ src, u8*, u64 n, OfBlock* __restrict__ largest, void*) {
        for (u64 i = 0; i < n; ++i) {
            const Source a = src[i] & Source(Src::mask ^ Src::sign_code);
            largest[i] = a > largest[i] ? a : largest[i];
        }
    }
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* __restrict__ largest, void*) {
        Source top = *largest;
        if (n == shorter_block) {
            // Compilers bring together the numbers of many blocks first, which takes longer.
            const Source own = largest_of_sixteen(src, Source(Src::mask ^ Src::sign_code));
            *largest = own > top ? own : top;
            return;
        }
        for (u64 i = 0; i < n; ++i) {
            const Source a = src[i] & Source(Src::mask ^ Src::sign_code);
            top = a > top ? a : top;
        }
        *largest = top;
    }
};

template <u32 Bytes>
struct SignedAs {
    typedef i32 type;
};
template <>
struct SignedAs<2> {
    typedef short type;
};

// The lowest and the largest number of a block so far, as codes, 0 at first. As unsigned integers the codes of negative
// numbers are above the others, by their magnitude; as signed ones below 0.
template <typename Src>
struct Range {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef typename SignedAs<sizeof(Source)>::type Signed;
    struct OfBlock {
        Source lowest;
        Signed largest;
    };
    enum : u64 { least = short_block };
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* __restrict__ range, void*) {
        Source lowest = range->lowest;
        Signed largest = range->largest;
        for (u64 i = 0; i < n; ++i) {
            const Source code = src[i];
            const Signed same = Signed(code);
            lowest = code > lowest ? code : lowest;
            largest = same > largest ? same : largest;
        }
        range->lowest = lowest;
        range->largest = largest;
    }

    struct Together {
        enum : bool { takes_adjacent = 0 };
        Together(OfBlock* own_, u64 n_) : own(own_), n(n_) {
            for (u64 i = 0; i < n; ++i) lowest[i] = own[i].lowest, largest[i] = own[i].largest;
        }
        ~Together() {
            for (u64 i = 0; i < n; ++i) own[i] = {lowest[i], largest[i]};
        }
        GPUCAST_INLINE void row(const Source* __restrict__ src, u8*, u64 count, void*) {
            for (u64 i = 0; i < count; ++i) {
                const Signed same = Signed(src[i]);
                lowest[i] = src[i] > lowest[i] ? src[i] : lowest[i];
                largest[i] = same > largest[i] ? same : largest[i];
            }
        }
        OfBlock* const own;
        const u64 n;
        alignas(64) Source lowest[long_block];
        alignas(64) Signed largest[long_block];
    };
};

// ---- counts ----

// Counts the numbers beyond their block's limit, the code of a FLOAT. The result is the sum of `short_block` counts: in
// short blocks each position has a count of its own, because adding them up would take longer than the comparisons.
template <typename Src>
struct Beyond {
    typedef Stored<Src> Source;
    typedef u8 Result;
    typedef const u32 OfBlock;
    enum : u64 { least = shorter_block };
    static GPUCAST_INLINE void row(const Source* __restrict__ src, u8*, u64 n, OfBlock* limit, void* more) {
        u32 beyond = 0;
        for (u64 i = 0; i < n; ++i) beyond += ptx::bits(ptx::abs(number<Src>(src[i]))) > limit[i];
        *static_cast<u64*>(more) += beyond;
    }
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* limit, void* more) {
        const u32 most = *limit;
        u64* __restrict__ counts = static_cast<u64*>(more);
        if (n == short_block) {
            for (u64 i = 0; i < short_block; ++i) counts[i] += ptx::bits(ptx::abs(number<Src>(src[i]))) > most;
            return;
        }
        // Words of 32 bits are counted more quickly.
        const u64 piece = u64(1) << 31;
        for (u64 begin = 0; begin < n; begin += piece) {
            const u64 end = n - begin < piece ? n : begin + piece;
            u32 beyond = 0;
            for (u64 i = begin; i < end; ++i) beyond += ptx::bits(ptx::abs(number<Src>(src[i]))) > most;
            counts[0] += beyond;
        }
    }
};

// Adds to a count how many codes equal their block's zero point.
struct Equal {
    typedef u8 Source;
    typedef u8 Result;
    typedef const u8 OfBlock;
    enum : u64 { least = short_block };
    static GPUCAST_INLINE void row(const Source* __restrict__ src, u8*, u64 n, OfBlock* zero, void* more) {
        u32 equal = 0;
        for (u64 i = 0; i < n; ++i) equal += src[i] == zero[i];
        *static_cast<u64*>(more) += equal;
    }
    static GPUCAST_INLINE void block(const Source* __restrict__ src, u8*, u64 n, OfBlock* zero, void* more) {
        const u8 code = *zero;
        u32 equal = 0;
        for (u64 i = 0; i < n; ++i) equal += src[i] == code;
        *static_cast<u64*>(more) += equal;
    }
};

}  // namespace gpucast

#define GPUCAST_RUN(NAME, ...)                                                                                    \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned long long skip,                   \
                     unsigned long long length, void* of, void* more) {                                           \
        gpucast::run_blocks<gpucast::__VA_ARGS__>(from, to, n, skip, length, of, more);                           \
    }
#define GPUCAST_RUN_OF(NAME, FUNCTION, SRC)                                                                       \
    static void NAME(const void* from, void* to, unsigned long long n, unsigned long long skip,                   \
                     unsigned long long length, void* of, void* more) {                                           \
        typedef const gpucast::Stored<gpucast::SRC>* Source;                                                      \
        /* Rows that have the same blocks one by one. */                                                          \
        const unsigned long long columns = length == 1 ? skip : n;                                                \
        for (unsigned long long at = 0; at < n; at += columns) {                                                  \
            gpucast::FUNCTION<gpucast::SRC>(static_cast<Source>(from) + at, static_cast<unsigned char*>(to) + at, \
                                            columns, length == 1 ? 0 : skip, length, of, more);                   \
        }                                                                                                         \
    }
