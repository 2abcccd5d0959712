// SPDX-License-Identifier: Apache-2.0
// What all parts of the extension module share: Python's limited API, NumPy's, and numbers.
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <string.h>

#include "types.hpp"

namespace gpucast {

// Elements from which on other threads of Python run while a cast works.
constexpr u64 lasting = 1 << 11;
// Elements after which a long cast looks whether a signal, such as Ctrl-C, has come: a few hundredths of a second.
constexpr u64 piece = 1 << 22;

// Releases Python's lock while it lives; `is_interrupted` looks for signals in between. The arrays of a call live until it
// returns, because their caller holds them, and nothing works on them later.
class Unlocked {
   public:
    explicit Unlocked(u64 size) : state_(size > lasting ? PyEval_SaveThread() : nullptr) {}
    ~Unlocked() { lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

    // True where a signal's handler has raised an exception, which is then set, and Python's lock held.
    bool is_interrupted(u64 done) {
        since_ += done;
        if (since_ < piece) return false;
        since_ = 0;
        if (!state_) return PyErr_CheckSignals() != 0;
        lock();
        if (PyErr_CheckSignals() != 0) return true;
        state_ = PyEval_SaveThread();
        return false;
    }

   private:
    void lock() {
        if (state_) PyEval_RestoreThread(state_);
        state_ = nullptr;
    }
    PyThreadState* state_;
    u64 since_ = 0;
};

}  // namespace gpucast
