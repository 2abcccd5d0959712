// SPDX-License-Identifier: Apache-2.0
// Plans of the functions that quantize on the host: entries, by the shape of an array, say what is computed, and how results
// look. gpucast/quantization/host_plans.py makes them.
#pragma once
#include "programs.hpp"
#include "quantize.hpp"

namespace gpucast {

// The arguments of gpucast.quantize and of gpucast.dequantize, in their order.
enum : int {
    quantize_x, quantize_format, quantize_axis, quantize_layout, quantize_transpose, quantize_rounding, quantize_seed, quantize_offset,
    quantize_scale, quantize_amax, quantize_hadamard, quantize_signs, quantize_device, quantize_out
};
enum : int { dequantize_q, dequantize_to, dequantize_hadamard, dequantize_signs, dequantize_seed, dequantize_out };

// The names of the parts of a gpucast.Quantized: codes, scales, zero points, the global scale.
enum : int { parts_of_result = 4 };
static PyObject* part_names[parts_of_result];

inline bool take_part_names() {
    const char* const texts[] = {"data", "scales", "zero_points", "global_scale"};
    for (int i = 0; i < parts_of_result; ++i) {
        if (!(part_names[i] = PyUnicode_InternFromString(texts[i]))) return false;
    }
    return true;
}

// What is new: None; of a tuple of a dtype and a shape an array of NumPy, which with a class and attributes is the `data` of
// one of these; else the result of a function. Null after an exception.
inline PyObject* make_part(PyObject* how) {
    if (is_none(how)) return Py_NewRef(how);
    if (!PyTuple_Check(how)) return PyObject_CallNoArgs(how);
    PyObject *dtype = PyTuple_GetItem(how, 0), *shape = PyTuple_GetItem(how, 1);
    npy_intp lengths[max_dimensions];
    const int dimensions = int(PyTuple_Size(shape));
    u64 size = itemsize_of(reinterpret_cast<PyArray_Descr*>(dtype));
    for (int i = 0; i < dimensions; ++i) {
        lengths[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        size *= u64(lengths[i]);
    }
    const LargeMemory own(size);
    Py_INCREF(dtype);
    PyObject* array = PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype), dimensions, lengths, nullptr, nullptr, 0, nullptr);
    if (!array || PyTuple_Size(how) == 2) return array;
    PyTypeObject* kind = reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(how, 2));
    PyObject* packed = PyType_GenericAlloc(kind, 0);
    bool is_made = packed && PyObject_SetAttr(packed, data_name, array) == 0;
    Py_DECREF(array);
    PyObject *name, *value;
    for (Py_ssize_t at = 0; is_made && PyDict_Next(PyTuple_GetItem(how, 3), &at, &name, &value);) is_made = PyObject_SetAttr(packed, name, value) == 0;
    if (!is_made) Py_CLEAR(packed);
    return packed;
}

// Whether something is what `make_part` takes. (A plan's own are checked once.)
inline bool is_part(PyObject* how) {
    if (is_none(how) || PyCallable_Check(how)) return true;
    const Py_ssize_t count = PyTuple_Check(how) ? PyTuple_Size(how) : 0;
    if ((count != 2 && count != 4) || !PyArray_DescrCheck(PyTuple_GetItem(how, 0)) || !PyTuple_Check(PyTuple_GetItem(how, 1))) return false;
    PyObject* shape = PyTuple_GetItem(how, 1);
    if (PyTuple_Size(shape) > max_dimensions || PyDataType_REFCHK(reinterpret_cast<PyArray_Descr*>(PyTuple_GetItem(how, 0)))) return false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(shape); ++i) {
        const Py_ssize_t length = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        PyErr_Clear();
        if (length < 0) return false;
    }
    return count == 2 || (PyType_Check(PyTuple_GetItem(how, 2)) && PyDict_Check(PyTuple_GetItem(how, 3)));
}

// An entry: a tuple of these.
enum : int {
    entry_how,        // Bytes of a Quantizing or a Dequantizing.
    entry_library,    // What is asked of a library of tensors, or None.
    entry_kind,       // The class of the Quantized, and those of its attributes that are not parts.
    entry_attributes,
    entry_data,       // The class of the codes, and whether they lie in their `data`.
    entry_is_packed,
    entry_shape,      // The shape of the codes, as they have it.
    entry_new,        // What is new: a tuple for the parts, or what the numbers are.
    entry_numbers,    // The class, dtype and shape of numbers.
    entry_dtype,
    entry_numbers_shape,
    entry_parts
};

inline bool is_entry(PyObject* given, bool is_back) {
    if (!PyTuple_Check(given) || PyTuple_Size(given) != entry_parts) return false;
    const auto at = [&](int i) { return PyTuple_GetItem(given, i); };
    const size_t size = is_back ? sizeof(Dequantizing) : sizeof(Quantizing);
    if (!PyBytes_Check(at(entry_how)) || size_t(PyBytes_Size(at(entry_how))) != size || !PyDict_Check(at(entry_attributes))) return false;
    for (int i : {int(entry_kind), int(entry_data), int(entry_numbers)}) {
        if (!PyType_Check(at(i))) return false;
    }
    if (is_back) return is_part(at(entry_new));
    if (!PyTuple_Check(at(entry_new)) || PyTuple_Size(at(entry_new)) != parts_of_result) return false;
    for (int i = 0; i < parts_of_result; ++i) {
        if (!is_part(PyTuple_GetItem(at(entry_new), i))) return false;
    }
    return true;
}

struct ResultEntry {
    PyObject* tuple;

    PyObject* at(int i) const { return PyTuple_GetItem(tuple, i); }
    PyTypeObject* kind(int i) const { return reinterpret_cast<PyTypeObject*>(at(i)); }

    // The parts of an earlier result that is as this says. False, without an exception, for any other.
    bool take_parts(PyObject* q, References* parts) const {
        PyObject *own = Py_TYPE(q) == kind(entry_kind) ? PyObject_GenericGetDict(q, nullptr) : nullptr, *name, *value;
        if (!own) PyErr_Clear();
        bool is_so = own != nullptr;
        for (Py_ssize_t at_one = 0; is_so && PyDict_Next(at(entry_attributes), &at_one, &name, &value);) {
            PyObject* found = PyDict_GetItemWithError(own, name);
            is_so = found && is_same(found, value);
        }
        for (int i = 0; is_so && i < parts_of_result; ++i) is_so = parts->take(Py_XNewRef(PyDict_GetItemWithError(own, part_names[i])));
        Py_XDECREF(own);
        PyErr_Clear();
        return is_so && Py_TYPE(parts->each[0]) == kind(entry_data) && has(parts->each[0], shape_name, at(entry_shape));
    }

    // The array with the codes, of the parts, with a reference that they hold.
    PyObject* memory(References* parts) const {
        if (at(entry_is_packed) != Py_True) return parts->each[0];
        PyObject* found = PyObject_GetAttr(parts->each[0], data_name);
        if (!found) PyErr_Clear();
        return parts->take(found) ? found : nullptr;
    }

    // A Quantized past __init__, whose checks take longer than all else. Null after an exception.
    PyObject* assemble(PyObject* const* parts) const {
        PyObject* q = PyType_GenericAlloc(kind(entry_kind), 0);
        PyObject* own = q ? PyObject_GenericGetDict(q, nullptr) : nullptr;
        bool is_done = own != nullptr;
        for (int i = 0; is_done && i < parts_of_result; ++i) is_done = PyDict_SetItem(own, part_names[i], parts[i]) == 0;
        is_done = is_done && PyDict_Update(own, at(entry_attributes)) == 0;
        Py_XDECREF(own);
        if (!is_done) Py_CLEAR(q);
        return q;
    }
};

// The entry for a shape, with a reference of its own; null, without an exception, where there is none. `matches`: takes one
// of a list of entries.
template <typename Matches>
inline PyObject* find_entry(const Plan* plan, PyObject* x, bool is_back, const Matches& matches) {
    PyObject* shape = PyObject_GetAttr(x, shape_name);
    PyObject* found = shape ? PyDict_GetItemWithError(plan->kernels, shape) : nullptr;
    Py_XDECREF(shape);
    PyErr_Clear();
    if (!found || !PyList_Check(found)) return nullptr;
    Py_INCREF(found);
    PyObject* entry = nullptr;
    for (Py_ssize_t i = 0; !entry && i < PyList_Size(found); ++i) {
        PyObject* one = Py_NewRef(PyList_GetItem(found, i));
        if (is_entry(one, is_back) && matches(one)) entry = one;
        else Py_DECREF(one);
    }
    Py_DECREF(found);
    return entry;
}

// new_part(how): as `make_part` takes it.
inline PyObject* new_part(PyObject*, PyObject* how) {
    if (is_part(how)) return make_part(how);
    PyErr_SetString(PyExc_TypeError, "new_part: expected None, a function, or a dtype and a shape, with a class and attributes");
    return nullptr;
}

// Calls by an entry end with these: a result with a reference of its own, or none.
inline PyObject* ended(int done, PyObject* result) {
    return done > 0 ? result : done ? nullptr : Py_NewRef(Py_NotImplemented);
}

// Quantizes as an entry says. Null after an exception; NotImplemented, nothing of use written, where only others can tell.
inline PyObject* quantize_by(const ResultEntry& entry, PyObject* x, PyObject* out) {
    Described<Quantizing> by;
    const int begun = by.read(entry.at(entry_how), entry.at(entry_library), "quantize");
    if (begun <= 0) return ended(begun, nullptr);
    References parts;
    const bool is_new = is_none(out);
    for (int i = 0; is_new && i < parts_of_result; ++i) {
        if (!parts.take(make_part(PyTuple_GetItem(entry.at(entry_new), i)))) return nullptr;
    }
    PyObject* memory = is_new || entry.take_parts(out, &parts) ? entry.memory(&parts) : nullptr;
    if (!memory) return ended(0, nullptr);
    PyObject* const into[] = {memory, parts.each[1], parts.each[2], parts.each[3]};
    int done = quantize_parts(by.how, by.library, OwnChoice(), x, into);
    for (int i = 0; done > 0 && !is_new && i < parts_of_result; ++i) {
        if (!tell_of(by.library, into[i])) done = -1;
    }
    return ended(done, done <= 0 ? nullptr : is_new ? entry.assemble(parts.each) : Py_NewRef(out));
}

// Of arrays that are quantized to nearest, as they are. All other calls are the function's.
inline PyObject* run_quantized(Plan* plan, PyObject* const* arguments) {
    if (arguments[quantize_offset] != zero) return nothing();
    for (int i : {int(quantize_seed), int(quantize_scale), int(quantize_amax), int(quantize_signs)}) {
        if (!is_none(arguments[i])) return nothing();
    }
    PyObject* entry = find_entry(plan, arguments[quantize_x], false, [](PyObject*) { return true; });
    if (!entry) return nothing();
    PyObject* result = quantize_by({entry}, arguments[quantize_x], arguments[quantize_out]);
    Py_DECREF(entry);
    return result;
}

inline PyObject* dequantize_by(const ResultEntry& entry, References* parts, PyObject* out) {
    Described<Dequantizing> by;
    const int begun = by.read(entry.at(entry_how), entry.at(entry_library), "dequantize");
    if (begun <= 0) return ended(begun, nullptr);
    const bool is_new = is_none(out);
    if (!is_new && (Py_TYPE(out) != entry.kind(entry_numbers) || !has(out, dtype_name, entry.at(entry_dtype)) ||
                    !has(out, shape_name, entry.at(entry_numbers_shape)))) {
        return ended(0, nullptr);
    }
    out = is_new ? make_part(entry.at(entry_new)) : Py_NewRef(out);
    if (!out) return nullptr;
    PyObject* memory = entry.memory(parts);
    PyObject* const from[] = {memory, parts->each[1], parts->each[2], parts->each[3]};
    int done = memory ? dequantize_parts(by.how, by.library, from, out) : 0;
    if (done > 0 && !is_new && !tell_of(by.library, out)) done = -1;
    if (done <= 0) Py_DECREF(out);
    return ended(done, out);
}

inline PyObject* run_dequantized(Plan* plan, PyObject* const* arguments) {
    for (int i : {int(dequantize_signs), int(dequantize_seed)}) {
        if (!is_none(arguments[i])) return nothing();
    }
    PyObject *q = arguments[dequantize_q], *own = PyObject_GenericGetDict(q, nullptr);
    PyObject* data = own ? Py_XNewRef(PyDict_GetItemWithError(own, part_names[0])) : nullptr;
    Py_XDECREF(own);
    PyErr_Clear();
    if (!data) return nothing();
    References parts;
    PyObject* entry = find_entry(plan, data, true, [&](PyObject* one) {
        parts.clear();
        return ResultEntry{one}.take_parts(q, &parts);
    });
    PyObject* result = entry ? dequantize_by({entry}, &parts, arguments[dequantize_out]) : nothing();
    Py_XDECREF(entry);
    Py_DECREF(data);
    return result;
}

}  // namespace gpucast
