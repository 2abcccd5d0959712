// SPDX-License-Identifier: Apache-2.0
// Memory of large new arrays. The next one takes what one has given back: to get it from the system takes longer than most
// casts, above all where a machine is virtual and several cores ask. The system may take what is kept when it runs short.
#pragma once
#include <stdlib.h>

#include "python.hpp"
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/resource.h>
#endif

namespace gpucast {

// Bytes of arrays from which on NumPy asks for large pages, and this for those of tensors; of a large page; of the largest
// small one; the most that are kept; and the most of them that the system may not take, about as many as malloc keeps.
enum : u64 { large = 1 << 22, large_page = 1 << 21, small_page = 1 << 16, most_spare = 1 << 27, most_held = 1 << 25 };

// Asks for large pages of new memory: to get it a small page at a time takes longer than most casts.
inline void ask_for_large_pages(u8* data, u64 bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const u64 before = (0 - reinterpret_cast<u64>(data)) % small_page;
    // Of a refusal nothing follows but time.
    if (bytes >= large) madvise(data + before, bytes - before, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

#if defined(__linux__) && defined(MADV_HUGEPAGE) && defined(MADV_FREE)

// An array's memory, if it is large: small pages, the first where a large one may start. How many bytes it has is said just in
// front, in a page of its own: behind it, data of whole large pages would need one more of these.
inline u64& bytes_of(void* data) { return static_cast<u64*>(data)[-1]; }

// Those that no array has, the oldest first. Only who holds Python's lock looks at them.
struct Spare {
    enum : int { most = 8 };
    u8* each[most + 1];
    int count = 0;
    u64 bytes = 0;

    u8* remove(int at) {
        u8* const data = each[at];
        --count, bytes -= bytes_of(data);
        memmove(each + at, each + at + 1, u64(count - at) * sizeof data);
        return data;
    }

    void drop_oldest() {
        u8* const data = remove(0);
        munmap(data - small_page, small_page + bytes_of(data));
    }

    void keep(u8* data) {
        const u64 most_bytes = is_limited() ? 0 : u64(most_spare);
        each[count++] = data, bytes += bytes_of(data);
        while (count > most || bytes > most_bytes) drop_oldest();
        // The last one is the likeliest to be taken next, and to ask for it back takes time.
        if (count > 1 && bytes_of(each[count - 2]) <= most_held) lend(each[count - 2]);
        if (count && bytes_of(data) > most_held) lend(data);
    }

    // If the process may have so much only, what is kept would be missing where others ask: they cannot drop it.
    static bool is_limited() {
        rlimit space = {}, data = {};
        getrlimit(RLIMIT_AS, &space), getrlimit(RLIMIT_DATA, &data);
        return space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY;
    }

    // The system may take it, until something is written there.
    static void lend(u8* data) { madvise(data, bytes_of(data), MADV_FREE); }

    // The smallest that is large enough, unless half of it would be left over; else a new one. Null where memory is short.
    u8* take(u64 wanted) {
        int best = -1;
        for (int i = 0; i < count; ++i) {
            const u64 own = bytes_of(each[i]);
            if (own >= wanted && own < 2 * wanted && (best < 0 || own < bytes_of(each[best]))) best = i;
        }
        if (best >= 0) return remove(best);
        const u64 around = small_page + wanted + large_page;
        void* found;
        while ((found = mmap(nullptr, around, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED) {
            if (!count) return nullptr;
            drop_oldest();
        }
        // What lies around goes.
        u8* const first = static_cast<u8*>(found);
        const u64 before = (0 - reinterpret_cast<u64>(first + small_page)) % large_page;
        u8* const data = first + before + small_page;
        if (before) munmap(first, before);
        munmap(data + wanted, large_page - before);
        ask_for_large_pages(data, wanted);
        bytes_of(data) = wanted;
        return data;
    }
};
static Spare spare;

// NumPy's functions for the memory of an array. What one of few bytes gets is malloc's, and so aligned behind their number.
enum : u64 { front = 16 };

inline void* allocate(void*, size_t bytes) {
    if (bytes >= large) return spare.take((bytes + small_page - 1) / small_page * small_page);
    u8* const start = static_cast<u8*>(malloc(front + bytes));
    if (!start) return nullptr;
    bytes_of(start + front) = bytes;
    return start + front;
}

inline void* allocate_zeros(void*, size_t count, size_t each) {
    void* data = allocate(nullptr, count * each);
    return data ? memset(data, 0, count * each) : nullptr;
}

inline void release(void*, void* data, size_t) {
    if (!data) return;
    if (bytes_of(data) >= large) {
        spare.keep(static_cast<u8*>(data));
    } else {
        free(static_cast<u8*>(data) - front);
    }
}

inline void* reallocate(void*, void* data, size_t bytes) {
    void* moved = allocate(nullptr, bytes);
    if (moved && data) {
        const u64 before = bytes_of(data);
        memcpy(moved, data, bytes < before ? bytes : before);
        release(nullptr, data, 0);
    }
    return moved;
}

static PyDataMem_Handler handler = {"gpucast", 1, {nullptr, allocate, allocate_zeros, reallocate, release}};
static PyObject* handler_capsule;

// False after an exception.
inline bool prepare_memory() {
    handler_capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
    return handler_capsule != nullptr;
}

// While one of these lives, a new array of so many bytes gets its memory here, unless it is small, or the program has chosen
// where arrays get theirs.
class LargeMemory {
   public:
    explicit LargeMemory(u64 bytes) {
        if (bytes < large) return;
        PyObject* before = PyDataMem_GetHandler();
        Py_XDECREF(before);
        is_chosen_ = before == PyDataMem_DefaultHandler && choose(handler_capsule);
        PyErr_Clear();
    }
    ~LargeMemory() {
        if (!is_chosen_) return;
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        choose(PyDataMem_DefaultHandler);
        PyErr_Restore(kind, value, trace);
    }
    LargeMemory(const LargeMemory&) = delete;
    LargeMemory& operator=(const LargeMemory&) = delete;

   private:
    static bool choose(PyObject* capsule) {
        PyObject* before = PyDataMem_SetHandler(capsule);
        Py_XDECREF(before);
        return before != nullptr;
    }
    bool is_chosen_ = false;
};

#else

inline bool prepare_memory() { return true; }
struct LargeMemory {
    explicit LargeMemory(u64) {}
};

#endif

}  // namespace gpucast
