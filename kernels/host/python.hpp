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
