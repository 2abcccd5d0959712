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
        if (!skip && n % length == 0 && length <= 4 * short_block) {
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

template <u64... each>
struct Places {};
template <u64 n, u64... each>
struct PlacesBelow : PlacesBelow<n - 1, n - 1, each...> {};
template <u64... each>
struct PlacesBelow<0, each...> {
    typedef Places<each...> type;
};

// The largest of each of some adjacent blocks. Compilers would add up each block by itself, which takes longer than to read it.
template <typename Lane>
struct Folded {
    enum : u64 { bytes = GPUCAST_TABLE_BYTES ? GPUCAST_TABLE_BYTES : 16, lanes = bytes / sizeof(Lane) };
    typedef Lane Vector __attribute__((vector_size(bytes)));

    // Puts the largest ones in the place of smaller ones; returns for how many blocks.
    template <typename Source>
    static GPUCAST_INLINE u64 merge(Lane* into, const Source* src, u64 count, u64 length, Lane mask) {
        const auto fold = [&](auto of) __attribute__((always_inline)) {
            u64 i = 0;
            for (; i + lanes <= count; i += lanes) {
                Vector top = largest<decltype(of)::length>(src + i * length, mask), before;
                __builtin_memcpy(&before, into + i, sizeof before);
                top = larger(top, before);
                __builtin_memcpy(into + i, &top, sizeof top);
            }
            return i;
        };
        if (length == shorter_block) return fold(Length<shorter_block>());
        if (length == short_block) return fold(Length<short_block>());
        if (length == 2 * short_block) return fold(Length<2 * short_block>());
        return length == 4 * short_block ? fold(Length<4 * short_block>()) : 0;
    }

   private:
    static GPUCAST_INLINE Vector larger(Vector a, Vector b) { return a > b ? a : b; }
    template <u64 length_>
    struct Length {
        enum : u64 { length = length_ };
    };
    template <u64 odd, u64... i>
    static GPUCAST_INLINE Vector every_second(Vector a, Vector b, Places<i...>) {
#if defined(__clang__)
        return __builtin_shufflevector(a, b, (2 * i + odd)...);
#else
        return __builtin_shuffle(a, b, Vector{Lane(2 * i + odd)...});
#endif
    }
    // Of `count` vectors, or as many times a longer block; the blocks keep their order.
    template <u64 length, u64 count = (length < lanes ? length : lanes), typename Source>
    static GPUCAST_INLINE Vector largest(const Source* src, Lane mask) {
        enum : u64 { together = length < lanes ? lanes : length };
        Vector a, b;
        if constexpr (count == 1) {
            __builtin_memcpy(&a, src, sizeof a), a &= mask;
            for (u64 i = lanes; i < together; i += lanes) __builtin_memcpy(&b, src + i, sizeof b), a = larger(a, b & mask);
            return a;
        } else {
            a = largest<length, count / 2>(src, mask), b = largest<length, count / 2>(src + together * count / 2, mask);
            const typename PlacesBelow<lanes>::type places;
            return larger(every_second<0>(a, b, places), every_second<1>(a, b, places));
        }
    }
};

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
        for (u64 i = 0; i < n; ++i) {
            const Source a = src[i] & Source(Src::mask ^ Src::sign_code);
            top = a > top ? a : top;
        }
        *largest = top;
    }

    struct Together {
        enum : bool { takes_adjacent = 1 };
        Together(OfBlock* own_, u64) : own(own_) {}
        GPUCAST_INLINE void row(const Source* src, u8* dst, u64 n, void* more) { Largest::row(src, dst, n, own, more); }
        GPUCAST_INLINE void adjacent(const Source* src, u8* dst, u64 count, u64 length, void* more) {
            u64 i = Folded<Source>::merge(own, src, count, length, Source(Src::mask ^ Src::sign_code));
            for (; i < count; ++i) block(src + i * length, dst, length, own + i, more);
        }
        OfBlock* const own;
    };
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
        enum : bool { takes_adjacent = 1 };
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
        GPUCAST_INLINE void adjacent(const Source* src, u8*, u64 count, u64 length, void*) {
            u64 i = Folded<Source>::merge(lowest, src, count, length, Source(~Source(0)));
            Folded<Signed>::merge(largest, src, count, length, Signed(-1));
            for (; i < count; ++i) {
                OfBlock range = {lowest[i], largest[i]};
                block(src + i * length, nullptr, length, &range, nullptr);
                lowest[i] = range.lowest, largest[i] = range.largest;
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
