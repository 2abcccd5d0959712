// SPDX-License-Identifier: Apache-2.0
// Python's lock during a cast, and the signals that one waits for.
#pragma once
#include "helpers.hpp"
#include "python.hpp"

namespace gpucast {

// Elements from which on other threads of Python run while a cast works.
enum : u64 { lasting = 1 << 11 };
// Elements after which a cast looks at the clock, and nanoseconds after which it looks whether a signal, such as Ctrl-C, has
// come: it may have to wait for the lock for a tenth of that.
enum : u64 { untimed = 1 << 14, unlooked = 50'000'000 };

// The thread that runs the handlers of signals.
static unsigned long main_thread;

inline void become_main_thread() { main_thread = PyThread_get_thread_ident(); }

// False after an exception.
inline bool find_main_thread() {
    PyObject* threading = PyImport_ImportModule("threading");
    PyObject* thread = threading ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
    PyObject* number = thread ? PyObject_GetAttrString(thread, "ident") : nullptr;
    if (number) main_thread = PyLong_AsUnsignedLong(number);
    Py_XDECREF(number);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    // Of a new process it is the one that forked.
    pthread_atfork(nullptr, nullptr, become_main_thread);
    return !PyErr_Occurred();
}

// Releases Python's lock while it lives. The main thread takes it now and then in between, to look for signals. Any other
// thread does not before its cast has ended: where the interpreter ends, a thread that asks for the lock ends, too, and
// helpers may still use its stack. The arrays of a call live until it returns, because their caller holds them, and nothing
// works on them later; whatever else a cast needs to know of them was read before.
class Unlocked {
   public:
    explicit Unlocked(u64 size) : state_(size > lasting ? PyEval_SaveThread() : nullptr) {}
    ~Unlocked() { lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

    // True where a signal's handler has raised an exception, which is then set, and Python's lock held.
    bool is_interrupted(u64 done) {
        since_ += done;
        if (since_ < untimed || !state_ || PyThread_get_thread_ident() != main_thread) return false;
        since_ = 0;
        const u64 now = nanoseconds();
        if (!looked_) looked_ = now;
        if (now - looked_ < unlooked) return false;
        lock();
        if (PyErr_CheckSignals() != 0) return true;
        state_ = PyEval_SaveThread();
        looked_ = nanoseconds();
        return false;
    }

   private:
    void lock() {
        if (state_) PyEval_RestoreThread(state_);
        state_ = nullptr;
    }
    PyThreadState* state_;
    u64 since_ = 0, looked_ = 0;
};

}  // namespace gpucast
