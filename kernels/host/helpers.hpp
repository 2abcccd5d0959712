// SPDX-License-Identifier: Apache-2.0
// Threads of the module's own that help with long casts. They start with the first one, sleep between two, never touch
// Python, and end with the process. They end before a fork, too, so that both processes have only threads that they know.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "types.hpp"

namespace gpucast {

// Eight threads keep the memory of most machines busy; and the most that may be asked for.
enum : int { most_threads = 8, most_asked = 64 };

// A piece of work: run(context, begin, end) for all parts of [0, size), in any order and by any thread.
struct Job {
    void (*run)(const void* context, u64 begin, u64 end);
    const void* context;
    u64 size, part;
    std::atomic<u64> next{0};
    // Of `helpers.lock`.
    int busy = 0;

    // goes_on(n): whether to take another part after one of n steps. If not, nobody does.
    template <typename GoesOn>
    bool take_parts(const GoesOn& goes_on) {
        for (u64 begin = next.fetch_add(part); begin < size; begin = next.fetch_add(part)) {
            const u64 end = size - begin < part ? size : begin + part;
            run(context, begin, end);
            if (!goes_on(end - begin)) {
                next = size;
                return false;
            }
        }
        return true;
    }
};

// One job at a time; no destructor, so that sleeping threads find all of it while the process ends.
struct Helpers {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, fork = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t has_job = PTHREAD_COND_INITIALIZER, is_left = PTHREAD_COND_INITIALIZER;
    Job* job = nullptr;
    bool is_taken = false, is_ending = false;
    // How many threads work on a job, the caller's included; the others, and how many there are.
    int threads = 1, started = 0;
    pthread_t each[most_asked];
};
static Helpers helpers;

inline void* help(void*) {
    pthread_mutex_lock(&helpers.lock);
    for (;;) {
        while (!helpers.job && !helpers.is_ending) pthread_cond_wait(&helpers.has_job, &helpers.lock);
        if (helpers.is_ending) break;
        Job* job = helpers.job;
        ++job->busy;
        pthread_mutex_unlock(&helpers.lock);
        job->take_parts([](u64) { return true; });
        pthread_mutex_lock(&helpers.lock);
        // All its parts are taken: nobody else begins with it.
        if (helpers.job == job) helpers.job = nullptr;
        if (--job->busy == 0) pthread_cond_signal(&helpers.is_left);
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
        if (pthread_create(&helpers.each[helpers.started], nullptr, help, nullptr) == 0) ++helpers.started;
        else helpers.threads = helpers.started + 1;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Runs a job of parts, with helpers where no other cast has them. False where `goes_on` ended it, which only the caller asks.
template <typename GoesOn>
inline bool run_job(Job* job, const GoesOn& goes_on) {
    pthread_mutex_lock(&helpers.lock);
    if (helpers.started + 1 < helpers.threads && !helpers.is_ending) start_helpers();
    const bool is_helped = helpers.started && !helpers.is_taken && !helpers.is_ending;
    if (is_helped) {
        helpers.is_taken = true, helpers.job = job;
        pthread_cond_broadcast(&helpers.has_job);
    }
    pthread_mutex_unlock(&helpers.lock);
    const bool is_done = job->take_parts(goes_on);
    if (!is_helped) return is_done;
    pthread_mutex_lock(&helpers.lock);
    if (helpers.job == job) helpers.job = nullptr;
    while (job->busy) pthread_cond_wait(&helpers.is_left, &helpers.lock);
    helpers.is_taken = false;
    pthread_mutex_unlock(&helpers.lock);
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
    helpers.is_taken = false, helpers.job = nullptr;
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
