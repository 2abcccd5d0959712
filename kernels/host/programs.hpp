// SPDX-License-Identifier: Apache-2.0
// Programs: the launches of an earlier call on a device, repeated for arrays that lie as its own did.
// gpucast/kernel/recording.py makes them.
#pragma once
#include "lists.hpp"
#include "packed.hpp"

namespace gpucast {

// A number of eight bytes in the arguments of a launch: the address of an array, so many bytes behind its first one; or the
// seed, or the offset, of random words; or the number that values are multiplied with.
struct Patch {
    u64 at, behind;
    int array;
};
enum : int { of_the_seed = -1, of_the_offset = -2, of_the_number = -3, least_patch = of_the_number };

struct RecordedLaunch {
    PyObject* launch;
    u64 blocks, bytes, patches;
    u8* arguments;
    Patch* patch;
};

// An array that a call was given: where such another one lies, modulo 64. Its first length and all elements are there for
// shapes that these tell, else -1.
struct GivenArray {
    PyTypeObject* kind;
    PyObject *shape, *dtype;
    u64 bytes, alike;
    Py_ssize_t dimensions, length, size;
    // A weak reference to the latest one, where it was asked of itself, and its address; null for none.
    PyObject* latest;
    u64 address;
};

// Programs of so many arrays remember the latest ones: to ask each takes longer than all else.
enum : int { remembered_from = 16 };

struct Program {
    PyObject_HEAD
    // The given arrays, of which so many are read, the others written; then those whose addresses alone are given.
    int given, reads, others, launches;
    PyObject* device;
    GivenArray* arrays;
    u64* alike;
    RecordedLaunch* launch;
};

static PyTypeObject* program_type;

enum : u64 { alike_addresses = 64 };

static void forget_program(PyObject* self) {
    Program* program = reinterpret_cast<Program*>(self);
    Py_XDECREF(program->device);
    for (int i = 0; i < program->given; ++i) {
        Py_XDECREF(reinterpret_cast<PyObject*>(program->arrays[i].kind));
        Py_XDECREF(program->arrays[i].shape);
        Py_XDECREF(program->arrays[i].dtype);
        Py_XDECREF(program->arrays[i].latest);
    }
    for (int i = 0; i < program->launches; ++i) {
        Py_XDECREF(program->launch[i].launch);
        PyMem_Free(program->launch[i].arguments);
        PyMem_Free(program->launch[i].patch);
    }
    PyMem_Free(program->arrays);
    PyMem_Free(program->alike);
    PyMem_Free(program->launch);
    PyTypeObject* kind = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(kind, Py_tp_free))(self);
    Py_DECREF(kind);
}

inline bool is_tuple(PyObject* given, const char* name) {
    if (PyTuple_Check(given)) return true;
    PyErr_Format(PyExc_TypeError, "program: %s must be a tuple", name);
    return false;
}

// Of a tuple of a launch, its blocks, its arguments as bytes, and tuples of three numbers. False after an exception.
inline bool read_launch(RecordedLaunch* one, PyObject* given, int arrays) {
    PyObject *launch, *patches;
    const char* bytes;
    Py_ssize_t size;
    unsigned long long blocks;
    if (!PyArg_ParseTuple(given, "OKy#O!", &launch, &blocks, &bytes, &size, &PyTuple_Type, &patches)) return false;
    const Py_ssize_t count = PyTuple_Size(patches);
    one->launch = Py_NewRef(launch), one->blocks = blocks, one->bytes = u64(size), one->patches = u64(count);
    one->arguments = static_cast<u8*>(PyMem_Malloc(size ? size_t(size) : 1));
    one->patch = static_cast<Patch*>(PyMem_Calloc(count ? size_t(count) : 1, sizeof(Patch)));
    if (!one->arguments || !one->patch) return PyErr_NoMemory() != nullptr;
    memcpy(one->arguments, bytes, size_t(size));
    for (Py_ssize_t i = 0; i < count; ++i) {
        unsigned long long at, behind;
        int array;
        PyObject* place = PyTuple_GetItem(patches, i);
        if (!is_tuple(place, "a place") || !PyArg_ParseTuple(place, "KiK", &at, &array, &behind)) return false;
        if (u64(size) < 8 || at > u64(size) - 8 || array < least_patch || array >= arrays) {
            PyErr_SetString(PyExc_ValueError, "program: a place outside of the arguments, or an array that there is not");
            return false;
        }
        one->patch[i] = {at, behind, array};
    }
    return true;
}

// Of one or two lengths above 0 the first and the product tell all.
inline void tell_shape(GivenArray* array) {
    Shape own;
    if (!own.take(array->shape) || own.dimensions < 1 || own.dimensions > 2 || !own.size) return PyErr_Clear();
    array->dimensions = own.dimensions, array->length = own.lengths[0], array->size = Py_ssize_t(own.size);
}

// program(launches, given, reads, alike, device): launches as `read_launch` has them; for each given array its class, shape,
// dtype, bytes, and its address modulo 64; for each other one the latter.
inline PyObject* new_program(PyObject*, PyObject* arguments) {
    PyObject *launches, *given, *alike, *device;
    int reads;
    if (!PyArg_ParseTuple(arguments, "O!O!iO!O", &PyTuple_Type, &launches, &PyTuple_Type, &given, &reads, &PyTuple_Type, &alike, &device)) {
        return nullptr;
    }
    const Py_ssize_t count = PyTuple_Size(given), others = PyTuple_Size(alike), steps = PyTuple_Size(launches);
    if (reads < 0 || reads > count) {
        PyErr_Format(PyExc_ValueError, "program: %d arrays are read; there are %zd", reads, count);
        return nullptr;
    }
    Program* program = reinterpret_cast<Program*>(PyType_GenericAlloc(program_type, 0));
    if (!program) return nullptr;
    program->device = Py_NewRef(device), program->reads = reads, program->others = int(others);
    program->arrays = static_cast<GivenArray*>(PyMem_Calloc(size_t(count + 1), sizeof(GivenArray)));
    program->alike = static_cast<u64*>(PyMem_Calloc(size_t(others + 1), sizeof(u64)));
    program->launch = static_cast<RecordedLaunch*>(PyMem_Calloc(size_t(steps + 1), sizeof(RecordedLaunch)));
    bool is_done = program->arrays && program->alike && program->launch;
    if (!is_done) PyErr_NoMemory();
    for (Py_ssize_t i = 0; is_done && i < count; ++i) {
        PyObject *kind, *shape, *dtype;
        unsigned long long bytes, own;
        PyObject* array = PyTuple_GetItem(given, i);
        is_done = is_tuple(array, "an array") && PyArg_ParseTuple(array, "O!OOKK", &PyType_Type, &kind, &shape, &dtype, &bytes, &own) != 0;
        if (!is_done) break;
        program->arrays[i] = {reinterpret_cast<PyTypeObject*>(Py_NewRef(kind)), Py_NewRef(shape), Py_NewRef(dtype), bytes, own, -1, -1, -1, nullptr, 0};
        tell_shape(&program->arrays[i]);
        ++program->given;
    }
    for (Py_ssize_t i = 0; is_done && i < others; ++i) program->alike[i] = number_at(alike, i);
    is_done = is_done && !PyErr_Occurred();
    for (Py_ssize_t i = 0; is_done && i < steps; ++i) {
        PyObject* one = PyTuple_GetItem(launches, i);
        ++program->launches;
        is_done = is_tuple(one, "a launch") && read_launch(&program->launch[i], one, int(count + others));
    }
    if (!is_done) Py_CLEAR(program);
    return reinterpret_cast<PyObject*>(program);
}

inline bool is_equal(PyObject* one, PyObject* other) {
    if (one == other) return true;
    const int found = PyObject_RichCompareBool(one, other, Py_EQ);
    PyErr_Clear();
    return found == 1;
}

// An attribute that equals something; false, without an exception, for any other.
inline bool has(PyObject* x, PyObject* name, PyObject* wanted) {
    PyObject* found = PyObject_GetAttr(x, name);
    if (!found) PyErr_Clear();
    const bool is_known = found && is_equal(found, wanted);
    Py_XDECREF(found);
    return is_known;
}

// An attribute that is an integer; false, without an exception, for any other.
inline bool is_number(PyObject* x, PyObject* name, Py_ssize_t wanted) {
    PyObject* found = PyObject_GetAttr(x, name);
    const bool is_so = found && PyLong_CheckExact(found) && PyLong_AsSsize_t(found) == wanted;
    Py_XDECREF(found);
    PyErr_Clear();
    return is_so;
}

// Whether an array of CuPy has a shape. It makes a new tuple of that, which takes longer than all else that is asked of it.
inline bool has_shape(const GivenArray& known, PyObject* x) {
    if (known.dimensions < 0) return has(x, shape_name, known.shape);
    if (!is_number(x, dimensions_name, known.dimensions)) return false;
    const bool is_long = PyObject_Size(x) == known.length;
    PyErr_Clear();
    return is_long && (known.dimensions == 1 || is_number(x, size_name, known.size));
}

// The address of an array of CuPy that lies as an earlier one did, or of one that was looked at before and is given by its
// address; false, without an exception, for any other.
inline bool find_address(const GivenArray& known, PyObject* x, PyObject* device, u64* address) {
    if (PyLong_CheckExact(x)) {
        *address = PyLong_AsUnsignedLongLong(x);
        const bool is_known = !PyErr_Occurred();
        PyErr_Clear();
        return is_known && *address % alike_addresses == known.alike;
    }
    if (Py_TYPE(x) != known.kind || !is_true(x, flat_name)) return false;
    PyObject* memory = PyObject_GetAttr(x, data_name);
    if (!memory) PyErr_Clear();
    const bool is_there = memory && find_number(memory, pointer_name, address) && *address % alike_addresses == known.alike &&
                          has(memory, place_name, device) && has_shape(known, x) && has(x, dtype_name, known.dtype);
    Py_XDECREF(memory);
    return is_there;
}

// False after an exception. stream: that of an earlier launch of the same program, or null.
inline bool launch_again(const RecordedLaunch& one, u8* bytes, void** stream, bool* is_known) {
    if (Py_TYPE(one.launch) != kernel_type) {
        PyObject* done = PyObject_CallFunction(one.launch, "Ky#", static_cast<unsigned long long>(one.blocks), bytes, Py_ssize_t(one.bytes));
        Py_XDECREF(done);
        return done != nullptr;
    }
    const Kernel* kernel = reinterpret_cast<const Kernel*>(one.launch);
    if (one.bytes != kernel->nbytes) {
        PyErr_SetString(PyExc_TypeError, "repeat: a kernel with other arguments");
        return false;
    }
    if (!*is_known && !find_stream(kernel, stream)) return false;
    *is_known = true;
    return launch_bytes(kernel, *stream, one.blocks, bytes);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// Whether a program's latest array is this one. (The function that gives a new reference is of Python 3.13.)
inline bool is_latest(const GivenArray& known, PyObject* x) { return known.latest && PyWeakref_GetObject(known.latest) == x; }
#pragma GCC diagnostic pop

inline void remember(GivenArray* known, PyObject* x, u64 address) {
    PyObject* const before = known->latest;
    known->latest = PyWeakref_NewRef(x, nullptr), known->address = address;
    PyErr_Clear();
    Py_XDECREF(before);
}

// Memory that is given back.
struct Room {
    explicit Room(u64 bytes) : all(bytes <= sizeof few ? few : static_cast<u8*>(PyMem_Malloc(bytes))) {}
    ~Room() {
        if (all != few) PyMem_Free(all);
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    alignas(16) u8 few[2048];
    u8* const all;
};

// A program for the arrays of a call: those that are given, then others by their addresses.
struct Repeat {
    explicit Repeat(const Program* of)
        : program(of), before_(of->given * sizeof(Extent) + ((u64(of->given + of->others) * sizeof(u64) + 15) & ~u64(15))), room_(bytes_of(*of)) {}

    const Program* const program;

    // Null, without an exception, where memory is short.
    u64* addresses() const { return reinterpret_cast<u64*>(room_.all + program->given * sizeof(Extent)); }
    bool has_room() const { return room_.all != nullptr; }

    // Whether a given array lies as that of the recorded call did.
    bool take(int i, PyObject* x) const {
        GivenArray* const known = &program->arrays[i];
        u64* const address = addresses() + i;
        if (is_latest(*known, x)) {
            // Of an array of CuPy the shape alone can change.
            *address = known->address;
            return has_shape(*known, x);
        }
        if (!find_address(*known, x, program->device, address)) return false;
        if (program->given >= remembered_from && !PyLong_CheckExact(x)) remember(known, x, *address);
        return true;
    }
    bool take_other(int i, u64 address) const {
        addresses()[program->given + i] = address;
        return address % alike_addresses == program->alike[i];
    }

    // Whether what is written of the given arrays shares no memory with anything else.
    bool are_apart() const {
        Extent *const read = reinterpret_cast<Extent*>(room_.all), *const written = read + program->reads;
        u64 reads = 0, writes = 0;
        for (int i = 0; i < program->given; ++i) {
            const u64 bytes = program->arrays[i].bytes;
            if (bytes) (i < program->reads ? read[reads++] : written[writes++]) = extent(addresses()[i], bytes);
        }
        return !writes || are_disjoint(written, writes, read, reads);
    }

    // Launches all. False after an exception.
    bool launch(u64 seed, u64 offset, double number) const {
        void* stream = nullptr;
        bool is_known = false, is_done = true;
        u8* bytes = room_.all + before_;
        for (int i = 0; is_done && i < program->launches; ++i) {
            const RecordedLaunch& one = program->launch[i];
            memcpy(bytes, one.arguments, one.bytes);
            for (u64 j = 0; j < one.patches; ++j) {
                const Patch& patch = one.patch[j];
                u8* const place = bytes + patch.at;
                if (patch.array == of_the_number) {
                    memcpy(place, &number, sizeof number);
                    continue;
                }
                const u64 word = patch.array >= 0 ? addresses()[patch.array] + patch.behind : patch.array == of_the_seed ? seed : offset;
                memcpy(place, &word, sizeof word);
            }
            is_done = launch_again(one, bytes, &stream, &is_known);
            bytes += (one.bytes + 15) & ~u64(15);
        }
        return is_done;
    }

   private:
    const u64 before_;
    const Room room_;

    static u64 bytes_of(const Program& of) {
        u64 size = of.given * sizeof(Extent) + ((u64(of.given + of.others) * sizeof(u64) + 15) & ~u64(15));
        for (int i = 0; i < of.launches; ++i) size += (of.launch[i].bytes + 15) & ~u64(15);
        return size;
    }
};

// repeat(program, given, new, seed, offset, number): repeats the launches for a list of arrays, and others. new(): something,
// and a list of the addresses of others, or None where there may be none; it is called where the given arrays are such as the
// program serves. Returns what that gave first; None, nothing done, where only the checked path can tell. The device of the
// arrays is the current one.
inline PyObject* repeat(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, 6, "repeat")) return nullptr;
    if (Py_TYPE(arguments[0]) != program_type || !PyList_CheckExact(arguments[1]) || !PyCallable_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "repeat: expected a program, a list and a function");
        return nullptr;
    }
    const Program* program = reinterpret_cast<const Program*>(arguments[0]);
    const u64 seed = PyLong_AsUnsignedLongLong(arguments[3]), offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(arguments[4]);
    const double number = PyErr_Occurred() ? 0 : PyFloat_AsDouble(arguments[5]);
    if (PyErr_Occurred()) return nullptr;
    if (PyList_Size(arguments[1]) != program->given) return nothing();
    const Repeat again(program);
    if (!again.has_room()) return PyErr_NoMemory();
    for (int i = 0; i < program->given; ++i) {
        // Its attributes may run others' code, which changes the list.
        PyObject* x = Py_XNewRef(PyList_GetItem(arguments[1], i));
        const bool is_there = x && again.take(i, x);
        Py_XDECREF(x);
        PyErr_Clear();
        if (!is_there) return nothing();
    }
    if (!again.are_apart()) return nothing();
    References made;
    if (!made.take(PyObject_CallNoArgs(arguments[2]))) return nullptr;
    PyObject* const pair = made.each[0];
    if (is_none(pair)) return nothing();
    PyObject* const others = PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 1) : nullptr;
    if (!others || !PyList_CheckExact(others) || PyList_Size(others) != program->others) return nothing();
    for (int i = 0; i < program->others; ++i) {
        const bool is_alike = again.take_other(i, PyLong_AsUnsignedLongLong(PyList_GetItem(others, i)));
        if (PyErr_Occurred()) return nullptr;
        if (!is_alike) return nothing();
    }
    return again.launch(seed, offset, number) ? Py_NewRef(PyTuple_GetItem(pair, 0)) : nullptr;
}

}  // namespace gpucast
