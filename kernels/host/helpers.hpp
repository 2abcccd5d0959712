// SPDX-License-Identifier: Apache-2.0
// Threads of the module's own that help with long casts. They start with the first one, watch for the next one for a few
// microseconds and sleep then, never touch Python, and end with the process. They end before a fork, too, so that both
// processes have only threads that they know.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "types.hpp"

namespace gpucast {

// Eight threads keep the memory of most machines busy; and the most that may be asked for.
enum : int { most_threads = 8, most_asked = 64 };
// Nanoseconds that a thread watches for work, or for the end of others' work, before it sleeps: to wake one takes as long.
enum : u64 { watched = 50'000 };
// Parts of as many steps or more end at multiples of so many, which fill cache lines and tiles.
enum : u64 { part_unit = 64 };
// Nanoseconds of work from which on threads that watch for it help, and from which on sleeping ones are woken: they come
// too late for less, but not for the next cast where casts follow each other so soon that they need not sleep again.
enum : u64 { shared_from = 4'000, woken_from = 50'000 };

// A piece of work: run(context, begin, end) for all parts of [0, size), in any order and by any thread.
struct Job {
    // What one thread begins with, adjacent parts of which its core may hold what is written; then it helps with the others'.
    struct alignas(64) Lane {
        std::atomic<u64> next;
        u64 end;
    };
    void (*run)(const void* context, u64 begin, u64 end);
    const void* context;
    u64 size, part;
    int lanes = 1;
    Lane each[most_threads];
    // How many others work on it; changed with `helpers.lock` held.
    std::atomic<int> busy{0};

    void cut(int threads) {
        lanes = threads < most_threads ? threads : int(most_threads);
        const u64 unit = part < part_unit ? part : u64(part_unit), length = (size / u64(lanes) / unit + 1) * unit;
        for (int i = 0; i < lanes; ++i) {
            const u64 begin = u64(i) * length, left = begin < size ? size - begin : 0;
            each[i].next = begin, each[i].end = begin + (left < length ? left : length);
        }
    }

    // goes_on(n): whether to take another part after one of n steps. False where it ended this.
    template <typename GoesOn>
    bool take_parts(int thread, const GoesOn& goes_on) {
        for (int i = 0; i < lanes; ++i) {
            Lane& lane = each[(thread + i) % lanes];
            for (u64 begin = lane.next.fetch_add(part); begin < lane.end; begin = lane.next.fetch_add(part)) {
                const u64 end = lane.end - begin < part ? lane.end : begin + part;
                run(context, begin, end);
                if (!goes_on(end - begin)) return false;
            }
        }
        return true;
    }

    // Nobody takes another part.
    void drop_parts() {
        for (int i = 0; i < lanes; ++i) each[i].next = each[i].end;
    }
};

// One job at a time; no destructor, so that sleeping threads find all of it while the process ends.
struct Helpers {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, fork = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t has_job = PTHREAD_COND_INITIALIZER, is_left = PTHREAD_COND_INITIALIZER;
    Job* job = nullptr;
    bool is_taken = false;
    std::atomic<bool> is_ending{false};
    // How many more threads the job wants; how many watch for one.
    std::atomic<int> wanted{0}, watching{0};
    // When the last cast ended that they could help with, in nanoseconds.
    std::atomic<u64> last{0};
    // How many threads work on a job, the caller's included; the others, and how many there are.
    int threads = 1, started = 0;
    pthread_t each[most_asked];
#if defined(__linux__)
    // The cores that the others were told to use; none if new ones were not told yet.
    cpu_set_t cores = {};
#endif
};
static Helpers helpers;

inline u64 nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return u64(now.tv_sec) * 1'000'000'000 + u64(now.tv_nsec);
}

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits until is_so(), but not for long. Others that could use the core get it.
template <typename IsSo>
inline void watch(const IsSo& is_so) {
    const u64 until = nanoseconds() + watched;
    do {
        for (int i = 0; i < 64; ++i, pause_briefly()) {
            if (is_so()) return;
        }
        sched_yield();
    } while (nanoseconds() < until);
}

// Whether this thread is one that the job wants.
inline bool joins() {
    int wanted = helpers.wanted.load(std::memory_order_relaxed);
    while (wanted > 0) {
        if (helpers.wanted.compare_exchange_weak(wanted, wanted - 1)) return true;
    }
    return false;
}

inline void* help(void* thread) {
    bool has_joined = false;
    pthread_mutex_lock(&helpers.lock);
    while (!helpers.is_ending) {
        Job* job = has_joined ? helpers.job : nullptr;
        if (job) {
            ++job->busy;
            pthread_mutex_unlock(&helpers.lock);
            // A fork waits for one part only: the caller takes those that are left.
            job->take_parts(int(reinterpret_cast<Address>(thread)), [](u64) { return !helpers.is_ending; });
            pthread_mutex_lock(&helpers.lock);
            // All its parts are taken, or all helpers end: nobody else begins with it.
            if (helpers.job == job) helpers.job = nullptr, helpers.wanted = 0;
            if (--job->busy == 0) pthread_cond_signal(&helpers.is_left);
        }
        // One that was woken too late for a short job watches for the next one, too.
        ++helpers.watching;
        pthread_mutex_unlock(&helpers.lock);
        has_joined = false;
        watch([&] { return (has_joined = joins()) || helpers.is_ending; });
        pthread_mutex_lock(&helpers.lock);
        --helpers.watching;
        has_joined = has_joined || joins();
        if (!has_joined && !helpers.is_ending) pthread_cond_wait(&helpers.has_job, &helpers.lock);
    }
    pthread_mutex_unlock(&helpers.lock);
    return nullptr;
}

// With the lock held. Where no thread can be started, the caller works alone.
inline void start_helpers() {
    sigset_t all, before;
    sigfillset(&all);
    // Signals are for the threads of the program.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (helpers.started + 1 < helpers.threads) {
        void* const thread = reinterpret_cast<void*>(Address(helpers.started + 1));
        if (pthread_create(&helpers.each[helpers.started], nullptr, help, thread) == 0) ++helpers.started;
        else helpers.threads = helpers.started + 1;
    }
#if defined(__linux__)
    // New ones were not told yet: they run where the caller may.
    CPU_ZERO(&helpers.cores);
#endif
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Makes the others wake on other cores than the caller's. In a virtual machine Linux takes an idle core for one that the host
// uses, and would wake them on the caller's, where they wait for it.
inline void avoid_own_core() {
#if defined(__linux__)
    cpu_set_t cores;
    const int own = sched_getcpu();
    if (own < 0 || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
    // A caller that may run on one core only leaves them the other cores of the program's first thread.
    if (CPU_COUNT(&cores) < 2 && sched_getaffinity(getpid(), sizeof cores, &cores) != 0) return;
    CPU_CLR(own, &cores);
    if (!CPU_COUNT(&cores) || CPU_EQUAL(&cores, &helpers.cores)) return;
    helpers.cores = cores;
    for (int i = 0; i < helpers.started; ++i) pthread_setaffinity_np(helpers.each[i], sizeof cores, &cores);
#endif
}

// Whether threads are to help with work that takes so many nanoseconds.
inline bool is_worth_help(u64 takes, u64 now) {
    if (takes < shared_from) return false;
    if (takes >= woken_from || helpers.watching.load(std::memory_order_relaxed)) return true;
    // It ends by then, if nobody helps.
    const u64 last = helpers.last.exchange(now + takes, std::memory_order_relaxed);
    return now < last + watched;
}

// Runs a job of parts, with helpers where no other cast has them. False where `goes_on` ended it, which only the caller asks.
template <typename GoesOn>
inline bool run_job(Job* job, const GoesOn& goes_on) {
    pthread_mutex_lock(&helpers.lock);
    if (helpers.started + 1 < helpers.threads && !helpers.is_ending) start_helpers();
    const bool is_helped = helpers.started && !helpers.is_taken && !helpers.is_ending;
    if (!is_helped) {
        job->cut(1);
    } else {
        const u64 others = (job->size - 1) / job->part;
        const int wanted = others < u64(helpers.started) ? int(others) : helpers.started;
        job->cut(wanted + 1);
        helpers.is_taken = true, helpers.job = job, helpers.wanted = wanted;
        if (helpers.watching < wanted) avoid_own_core();
        for (int i = helpers.watching; i < wanted; ++i) pthread_cond_signal(&helpers.has_job);
    }
    pthread_mutex_unlock(&helpers.lock);
    const bool is_done = job->take_parts(0, goes_on);
    if (!is_helped) return is_done;
    if (!is_done) job->drop_parts();
    watch([&] { return !job->busy; });
    pthread_mutex_lock(&helpers.lock);
    if (helpers.job == job) helpers.job = nullptr, helpers.wanted = 0;
    while (job->busy) pthread_cond_wait(&helpers.is_left, &helpers.lock);
    helpers.is_taken = false;
    pthread_mutex_unlock(&helpers.lock);
    helpers.last.store(nanoseconds(), std::memory_order_relaxed);
    return is_done;
}

// ---- how many, and forks ----

inline void before_fork() {
    // One at a time.
    pthread_mutex_lock(&helpers.fork);
    pthread_mutex_lock(&helpers.lock);
    helpers.is_ending = true;
    pthread_cond_broadcast(&helpers.has_job);
    pthread_mutex_unlock(&helpers.lock);
    for (int i = 0; i < helpers.started; ++i) pthread_join(helpers.each[i], nullptr);
    // The other threads of the program find it whole in the new process, where they are not.
    pthread_mutex_lock(&helpers.lock);
}

inline void after_fork() {
    helpers.started = 0, helpers.is_ending = false;
    pthread_mutex_unlock(&helpers.lock);
    pthread_mutex_unlock(&helpers.fork);
}

inline void after_fork_in_child() {
    // Of threads that are not here.
    helpers.is_taken = false, helpers.job = nullptr, helpers.wanted = 0;
    pthread_cond_init(&helpers.is_left, nullptr);
    pthread_cond_init(&helpers.has_job, nullptr);
    after_fork();
}

inline long count_cores() {
#if defined(__linux__)
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) == 0) return CPU_COUNT(&own);
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

// `asked`: GPUCAST_HOST_THREADS, or null. False where that is no number from 1 to 64.
inline bool choose_threads(const char* asked) {
    // A program that limits the threads of others' loops means these, too.
    const char* limit = getenv("OMP_NUM_THREADS");
    const long limited = limit ? strtol(limit, nullptr, 10) : 0;
    long count = count_cores(), most = most_threads;
    if (asked) {
        char* end;
        count = most = strtol(asked, &end, 10);
        if (*end || count < 1 || count > most_asked) return false;
    } else if (limited > 0 && limited < count) {
        count = limited;
    }
    helpers.threads = int(count < most ? count : most);
    if (pthread_atfork(before_fork, after_fork, after_fork_in_child) != 0) helpers.threads = 1;
    return true;
}

}  // namespace gpucast
