// SPDX-License-Identifier: Apache-2.0
// gpucast._host: casts of the host, and launches on devices, as functions of Python. The loops are those of units that gpucast/kernel/host_units.py writes
// of the kernels' own text, for several levels of the processor; gpucast/host is what the rest of the package sees of it.
#include "python.hpp"

#include "modes.hpp"
#include "probe.hpp"
#include "text.hpp"
#include "xla.hpp"

namespace gpucast {

// find(name): the address of a function of the loops; 0 where there is none.
static PyObject* find(PyObject*, PyObject* name) {
    PyObject* bytes = PyUnicode_AsUTF8String(name);
    if (!bytes) return nullptr;
    PyObject* found = PyLong_FromVoidPtr(reinterpret_cast<void*>(find_function(PyBytes_AsString(bytes))));
    Py_DECREF(bytes);
    return found;
}

// call(function, arguments): calls a function that `find` gave with the address of its arguments, outside of Python's lock,
// and returns its result, an int. The caller keeps alive what the arguments refer to.
static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, 2, "call")) return nullptr;
    typedef int Called(void*);
    Called* function = reinterpret_cast<Called*>(PyLong_AsVoidPtr(arguments[0]));
    void* given = PyLong_AsVoidPtr(arguments[1]);
    if (PyErr_Occurred()) return nullptr;
    if (!function) {
        PyErr_SetString(PyExc_ValueError, "call: there is no such function");
        return nullptr;
    }
    int result;
    PyThreadState* state = PyEval_SaveThread();
    {
        const Exactly exactly;
        result = function(given);
    }
    PyEval_RestoreThread(state);
    return PyLong_FromLong(result);
}

// cast(work, x, src_bits, out, dst_bits, size): casts an array, or the packed elements in a flat array of bytes (their bits
// are not 0 then), into another, which shares no memory with it. Returns what a fused cast finds: the largest magnitude as
// the code of a FLOAT, and whether all is finite.
static PyObject* cast(PyObject*, PyObject* arguments) {
    PyObject *given, *from, *to;
    unsigned src_bits, dst_bits;
    unsigned long long size;
    if (!PyArg_ParseTuple(arguments, "SOIOIK", &given, &from, &src_bits, &to, &dst_bits, &size)) return nullptr;
    if (PyBytes_Size(given) != Py_ssize_t(sizeof(Work)) || !PyArray_Check(from) || !PyArray_Check(to)) {
        PyErr_SetString(PyExc_TypeError, "cast: expected a work, and two arrays");
        return nullptr;
    }
    Work work;
    memcpy(&work, PyBytes_AsString(given), sizeof work);
    PyArrayObject *x = array_of(from), *out = array_of(to);
    Found found;
    bool done;
    if (!src_bits && !dst_bits) {
        if (!is_same_shape(layout_of(x), layout_of(out))) {
            PyErr_SetString(PyExc_ValueError, "cast: the arrays have other shapes");
            return nullptr;
        }
        done = cast_arrays(layout_of(x), layout_of(out), work, &found);
    } else {
        Walk walk;
        if (!set_packed_walk(&walk, x, src_bits, out, dst_bits, size)) {
            PyErr_SetString(PyExc_ValueError, "cast: the arrays have other sizes");
            return nullptr;
        }
        Unlocked unlocked(size);
        done = run_walk(walk, work, &found, &unlocked);
    }
    return done ? Py_BuildValue("(Ii)", found.largest, int(found.finite)) : nullptr;
}

static PyObject* get_modes(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(modes()); }

static PyObject* set_modes(PyObject*, PyObject* asked) {
    const unsigned long long found = PyLong_AsUnsignedLongLong(asked);
    if (PyErr_Occurred()) return nullptr;
    set_modes(Modes(found));
    return nothing();
}

// Counts the changes of the functions below: `gpucast.core.extension` knows by it whether this was built from its sources.
enum : long { interface = 11 };

static PyMethodDef methods[] = {
    {"find", find, METH_O, nullptr},
    {"call", as_method(call), METH_FASTCALL, nullptr},
    {"cast", cast, METH_VARARGS, nullptr},
    {"read_texts", read_texts, METH_VARARGS, nullptr},
    {"write_texts", write_texts, METH_VARARGS, nullptr},
    {"kernel", new_kernel, METH_VARARGS, nullptr},
    {"plan", new_plan, METH_VARARGS, nullptr},
    {"function", new_function, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"count_plans", count_plans, METH_NOARGS, nullptr},
    {"program", new_program, METH_VARARGS, nullptr},
    {"repeat", as_method(repeat), METH_FASTCALL, nullptr},
    {"quantize", as_method(quantize), METH_FASTCALL, nullptr},
    {"transform", as_method(transform), METH_FASTCALL, nullptr},
    {"group", as_method(group), METH_FASTCALL, nullptr},
    {"new_part", new_part, METH_O, nullptr},
    {"pause", pause, METH_O, nullptr},
    {"serve", serve, METH_VARARGS, nullptr},
    {"xla_handlers", xla_handlers, METH_VARARGS, nullptr},
    {"modes", get_modes, METH_NOARGS, nullptr},
    {"set_modes", set_modes, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_host", "The casts of the host, compiled.", -1, methods, nullptr, nullptr, nullptr, nullptr,
};

static PyObject* built_levels() {
    PyObject* list = PyList_New(0);
    for (const Level* one = gpucast_levels; list && one->name; ++one) {
        PyObject* name = PyUnicode_FromString(one->name);
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    PyObject* tuple = list ? PyList_AsTuple(list) : nullptr;
    Py_XDECREF(list);
    return tuple;
}

static bool add(PyObject* module, const char* name, PyObject* value) {
    const bool is_added = value && PyModule_AddObjectRef(module, name, value) == 0;
    Py_XDECREF(value);
    return is_added;
}

static bool prepare(PyObject* module) {
    static PyType_Slot parts[] = {{Py_tp_dealloc, reinterpret_cast<void*>(forget_plan)}, {0, nullptr}};
    static PyType_Spec spec = {"gpucast._host.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT, parts};
    static PyType_Slot kernel_parts[] = {{Py_tp_dealloc, reinterpret_cast<void*>(forget_kernel)},
                                         {Py_tp_call, reinterpret_cast<void*>(call_kernel)},
                                         {0, nullptr}};
    static PyType_Spec kernel_spec = {"gpucast._host.Kernel", sizeof(Kernel), 0, Py_TPFLAGS_DEFAULT, kernel_parts};
    static PyType_Slot program_parts[] = {{Py_tp_dealloc, reinterpret_cast<void*>(forget_program)}, {0, nullptr}};
    static PyType_Spec program_spec = {"gpucast._host.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT, program_parts};
    const char* asked = getenv("GPUCAST_HOST_LEVEL");
    if (!choose_level(asked && *asked ? asked : nullptr)) return false;
    const char* threads = getenv("GPUCAST_HOST_THREADS");
    if (!choose_threads(threads && *threads ? threads : nullptr)) {
        PyErr_Format(PyExc_ImportError, "GPUCAST_HOST_THREADS=%s is not a number from 1 to 64", threads);
        return false;
    }
    plan_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    kernel_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kernel_spec));
    program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&program_spec));
    dtype_name = PyUnicode_InternFromString("dtype");
    zero = PyLong_FromLong(0);
    if (!plan_type || !kernel_type || !program_type || !prepare_memory() || !find_main_thread() || !take_names() || !take_tensor_names() || !take_part_names() || !dtype_name || !zero || !forget_plans()) return false;
    return add(module, "INTERFACE", PyLong_FromLong(interface)) && add(module, "LEVEL", PyUnicode_FromString(level->name)) &&
           add(module, "THREADS", PyLong_FromLong(helpers.threads)) &&
           add(module, "LEVELS", built_levels()) && add(module, "WORK_BYTES", PyLong_FromSize_t(sizeof(Work))) &&
           add(module, "EXACT_MODES", PyLong_FromUnsignedLongLong(exact_modes));
}

static int import_numpy() {
    import_array1(-1);
    return 0;
}

}  // namespace gpucast

PyMODINIT_FUNC PyInit__host() {
    if (gpucast::import_numpy() < 0) return nullptr;
    PyObject* module = PyModule_Create(&gpucast::definition);
    if (module && !gpucast::prepare(module)) Py_CLEAR(module);
    return module;
}
