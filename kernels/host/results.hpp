// SPDX-License-Identifier: Apache-2.0
// Plans of the functions that quantize on the host: entries, by the shape of an array, say what is computed, and how results
// look. gpucast/quantization/host_plans.py makes them.
#pragma once
#include "packed.hpp"
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

// What is new: None; of a tuple of a dtype and a shape an array of NumPy; of these and a function that gives memory, and a
// class, one of CuPy. With a class and attributes it is the `data` of one of these. Else the result of a function.
struct NewPart {
    PyObject *dtype, *shape, *allocate = nullptr, *array = nullptr, *kind = nullptr, *attributes = nullptr;
    Shape lengths;

    // False for any other object. (A plan's own are checked once.)
    bool read(PyObject* how) {
        const Py_ssize_t count = PyTuple_Check(how) ? PyTuple_Size(how) : 0;
        if (count != 4 && count != 6) return false;
        PyObject** const all[] = {&dtype, &shape, &allocate, &array, &kind, &attributes};
        for (Py_ssize_t i = 0; i < count; ++i) *all[i] = is_none(PyTuple_GetItem(how, i)) ? nullptr : PyTuple_GetItem(how, i);
        if (!dtype || !PyArray_DescrCheck(dtype) || PyDataType_REFCHK(reinterpret_cast<PyArray_Descr*>(dtype)) || !lengths.take(shape)) return false;
        return (!allocate || (array && PyCallable_Check(allocate) && PyCallable_Check(array))) &&
               (!kind || (attributes && PyType_Check(kind) && PyDict_Check(attributes)));
    }

    u64 bytes() const { return lengths.size * itemsize_of(reinterpret_cast<PyArray_Descr*>(dtype)); }

    PyObject* new_array() {
        if (allocate) {
            PyObject* memory = PyObject_CallFunction(allocate, "K", static_cast<unsigned long long>(bytes()));
            PyObject* made = memory ? PyObject_CallFunctionObjArgs(array, shape, dtype, memory, nullptr) : nullptr;
            Py_XDECREF(memory);
            return made;
        }
        const LargeMemory own(bytes());
        Py_INCREF(dtype);
        return PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype), lengths.dimensions, lengths.lengths, nullptr, nullptr, 0,
                                    nullptr);
    }
};

// Null after an exception.
inline PyObject* make_part(PyObject* how) {
    if (is_none(how)) return Py_NewRef(how);
    if (!PyTuple_Check(how)) return PyObject_CallNoArgs(how);
    NewPart part;
    if (!part.read(how)) return PyErr_Format(PyExc_TypeError, "a part that can not be made");
    PyObject* array = part.new_array();
    if (!array || !part.kind) return array;
    PyObject* packed = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(part.kind), 0);
    bool is_made = packed && PyObject_SetAttr(packed, data_name, array) == 0;
    Py_DECREF(array);
    PyObject *name, *value;
    for (Py_ssize_t at = 0; is_made && PyDict_Next(part.attributes, &at, &name, &value);) is_made = PyObject_SetAttr(packed, name, value) == 0;
    if (!is_made) Py_CLEAR(packed);
    return packed;
}

// Whether something is what `make_part` takes.
inline bool is_part(PyObject* how) {
    NewPart part;
    return is_none(how) || PyCallable_Check(how) || part.read(how);
}

// An entry: a tuple of these.
enum : int {
    entry_how,        // Bytes of a Producing or a Restoring; or a Program for arrays of CuPy.
    entry_library,    // What is asked of a library of tensors, or None; of a program whether a graph is captured.
    entry_kind,       // The class of the Quantized, and those of its attributes that are not parts.
    entry_attributes,
    entry_data,       // The class of the codes, and whether they lie in their `data`.
    entry_is_packed,
    entry_shape,      // The shape of the codes, as they have it.
    entry_new,        // What is new: a tuple for the parts, or what the numbers are.
    entry_numbers,    // The class, dtype and shape of numbers.
    entry_dtype,
    entry_numbers_shape,
    entry_places,     // Of a program with others their places in a new result, or functions that give their addresses, of an `out`.
    entry_signs,      // The signs of a transform, a tuple of integers or None, and the seed of such.
    entry_seed,
    entry_scales,     // The shape of scales before they are ordered.
    entry_numbers_of, // Of a program the scale and the magnitude with which it was made, and the class of arrays for such a one.
    entry_parts
};

inline bool is_entry(PyObject* given, bool is_back) {
    if (!PyTuple_Check(given) || PyTuple_Size(given) != entry_parts) return false;
    const auto at = [&](int i) { return PyTuple_GetItem(given, i); };
    const size_t size = is_back ? sizeof(Restoring) : sizeof(Producing);
    if (Py_TYPE(at(entry_how)) == program_type) {
        if (!PyCallable_Check(at(entry_library))) return false;
    } else if (!PyBytes_Check(at(entry_how)) || size_t(PyBytes_Size(at(entry_how))) != size) {
        return false;
    }
    if (!PyDict_Check(at(entry_attributes)) || !(is_none(at(entry_signs)) || PyTuple_Check(at(entry_signs)))) return false;
    for (int i : {int(entry_kind), int(entry_data), int(entry_numbers)}) {
        if (!PyType_Check(at(i))) return false;
    }
    if (Py_TYPE(at(entry_how)) == program_type && !is_back && !(PyTuple_Check(at(entry_numbers_of)) && PyTuple_Size(at(entry_numbers_of)) == 2)) return false;
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
    bool is_on_device() const { return Py_TYPE(at(entry_how)) == program_type; }
    // A program either makes a new result, or is given an `out`.
    bool is_for(PyObject* out) const {
        PyObject* const made = at(entry_new);
        return !is_on_device() || is_none(PyTuple_Check(made) && PyTuple_Size(made) == parts_of_result ? PyTuple_GetItem(made, 0) : made) != is_none(out);
    }
    // Whether a call has the signs of this one, from numbers of the very classes that a checked call had.
    bool has_signs(PyObject* signs, PyObject* seed) const {
        if (is_none(at(entry_seed)) ? !is_none(seed) : !(PyLong_CheckExact(seed) && is_equal(seed, at(entry_seed)))) return false;
        PyObject* const known = at(entry_signs);
        if (is_none(known) || is_none(signs)) return known == signs;
        const bool is_list = PyList_CheckExact(signs);
        const Py_ssize_t count = PyTuple_Size(known);
        if (!(is_list || PyTuple_CheckExact(signs)) || PySequence_Size(signs) != count) return false;
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* sign = is_list ? PyList_GetItem(signs, i) : PyTuple_GetItem(signs, i);
            if (!PyLong_CheckExact(sign) || !is_equal(sign, PyTuple_GetItem(known, i))) return false;
        }
        return true;
    }
    // Whether the scale, or the magnitude, of a call is that of a program: a number, or an array. Those of the host take all.
    bool is_for_number(PyObject* given, Py_ssize_t i) const {
        if (!is_on_device()) return true;
        PyObject* const known = PyTuple_GetItem(at(entry_numbers_of), i);
        if (PyType_Check(known)) return reinterpret_cast<PyObject*>(Py_TYPE(given)) == known;
        return is_none(known) ? is_none(given) : Py_TYPE(given) == Py_TYPE(known) && is_equal(given, known);
    }
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

// ---- on devices ----

// Repeats the program of an entry for these arrays, of which null and None count as none. Those of a new result are in `made`;
// the others of the program have their places there, or are kept: functions of `keeper` give their addresses, or None. Returns 1; 0, nothing
// done, where only others can tell; -1 after an exception.
template <typename Make>
inline int repeat_by(const ResultEntry& entry, PyObject* const* given, int count, bool is_new, PyObject* keeper, const Make& make, References* made) {
    PyObject* const places = entry.at(entry_places);
    const Program* program = reinterpret_cast<const Program*>(entry.at(entry_how));
    const Repeat again(program);
    if (!again.has_room()) return PyErr_NoMemory(), -1;
    int taken = 0, device = 0;
    for (int i = 0; i < count; ++i) {
        if (!given[i] || is_none(given[i])) continue;
        if (taken == program->given || !again.take(taken++, given[i])) return 0;
    }
    const Kernel* kernel = reinterpret_cast<const Kernel*>(program->launches ? program->launch[0].launch : nullptr);
    if (taken != program->given || !again.are_apart() || !kernel || Py_TYPE(program->launch[0].launch) != kernel_type) return 0;
    if (kernel->current(&device) != 0 || device != kernel->device) return 0;
    if (is_new) {
        PyObject* is_captured = PyObject_CallNoArgs(entry.at(entry_library));
        if (!is_captured) return -1;
        if (!is_false(is_captured)) return 0;
        if (!make(made)) return -1;
    }
    for (int i = 0; i < program->others; ++i) {
        PyObject* const place = PyTuple_Check(places) ? PyTuple_GetItem(places, i) : nullptr;
        if (place && PyCallable_Check(place)) {
            PyObject* kept = PyObject_CallFunctionObjArgs(place, keeper, nullptr);
            const bool is_there = kept && !is_none(kept);
            const u64 address = is_there ? PyLong_AsUnsignedLongLong(kept) : 0;
            Py_XDECREF(kept);
            if (PyErr_Occurred()) return -1;
            if (!is_there || !again.take_other(i, address)) return 0;
            continue;
        }
        const Py_ssize_t at = place ? PyLong_AsSsize_t(place) : -1;
        PyErr_Clear();
        if (at < 0 || at >= made->count) return 0;
        u64 address = 0;
        References parts;
        // Packed elements are in the memory of an array.
        if (!parts.take(PyObject_GetAttr(made->each[at], data_name))) return -1;
        if (Py_TYPE(parts.each[0]) == program->arrays[0].kind && !parts.take(PyObject_GetAttr(parts.each[0], data_name))) return -1;
        if (!find_number(parts.each[parts.count - 1], pointer_name, &address) || !again.take_other(i, address)) return 0;
    }
    return again.launch(0, 0, 1) ? 1 : -1;
}

inline PyObject* quantize_on_device(const ResultEntry& entry, PyObject* x, PyObject* scale, PyObject* amax, PyObject* out) {
    const auto array = [&](PyObject* one) { return reinterpret_cast<PyObject*>(Py_TYPE(one)) == reinterpret_cast<PyObject*>(Py_TYPE(x)) ? one : nullptr; };
    References parts;
    if (!is_none(out) && !entry.take_parts(out, &parts)) return nothing();
    PyObject* const memory = is_none(out) ? nullptr : entry.memory(&parts);
    PyObject* const given[] = {x, array(scale), array(amax), memory, parts.each[1], parts.each[2], parts.each[3]};
    if (!is_none(out) && !memory) return nothing();
    const int done = repeat_by(entry, given, memory ? 7 : 3, !memory, out, [&](References* made) {
        for (int i = 0; i < parts_of_result; ++i) {
            if (!made->take(make_part(PyTuple_GetItem(entry.at(entry_new), i)))) return false;
        }
        return true;
    }, &parts);
    return done < 0 ? nullptr : !done ? nothing() : is_none(out) ? entry.assemble(parts.each) : Py_NewRef(out);
}

inline PyObject* dequantize_on_device(const ResultEntry& entry, PyObject* q, References* parts, PyObject* out) {
    PyObject* const memory = entry.memory(parts);
    PyObject* const given[] = {memory, parts->each[1], parts->each[2], parts->each[3], is_none(out) ? nullptr : out};
    References made;
    const int done = !memory ? 0 : repeat_by(entry, given, 5, is_none(out), q, [&](References* to) { return to->take(make_part(entry.at(entry_new))); }, &made);
    return done < 0 ? nullptr : !done ? nothing() : is_none(out) ? Py_NewRef(made.each[0]) : Py_NewRef(out);
}

// ---- on the host ----

// Calls by an entry end with these: a result with a reference of its own, or none.
inline PyObject* ended(int done, PyObject* result) {
    return done > 0 ? result : done ? nullptr : Py_NewRef(Py_NotImplemented);
}

// Quantizes as an entry says, by a scale or a magnitude that the call gives, or None. Null after an exception; NotImplemented,
// nothing of use written, where only others can tell.
inline PyObject* quantize_by(const ResultEntry& entry, PyObject* x, PyObject* scale, PyObject* amax, PyObject* out) {
    if (entry.is_on_device()) return quantize_on_device(entry, x, scale, amax, out);
    OwnChoice choice;
    const bool is_array = !is_none(scale) && !PyFloat_CheckExact(scale);
    // The two do not go together.
    if ((!is_none(scale) && !is_none(amax)) || !take_float(amax, 0, &choice.has_top, &choice.top)) return nothing();
    // An array with one for each block; others may stand for several.
    if (is_array ? !has(scale, shape_name, entry.at(entry_scales)) : !take_float(scale, 0x1p-149f, &choice.has_scale, &choice.scale)) return nothing();
    Described<Producing> by;
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
    int done = quantize_parts(*by.how, by.library, choice, x, is_array ? scale : nullptr, into);
    if (!is_new) done = tell_of_all(done, by.library, into, parts_of_result);
    return ended(done, done <= 0 ? nullptr : is_new ? entry.assemble(parts.each) : Py_NewRef(out));
}

// Of arrays that are quantized to nearest. All other calls are the function's.
inline PyObject* run_quantized(Plan* plan, PyObject* const* arguments) {
    if (arguments[quantize_offset] != zero) return nothing();
    PyObject *const out = arguments[quantize_out], *const scale = arguments[quantize_scale], *const amax = arguments[quantize_amax];
    PyObject* entry = find_entry(plan, arguments[quantize_x], false, [&](PyObject* one) {
        const ResultEntry own{one};
        return own.is_for(out) && own.has_signs(arguments[quantize_signs], arguments[quantize_seed]) && own.is_for_number(scale, 0) &&
               own.is_for_number(amax, 1);
    });
    if (!entry) return nothing();
    PyObject* result = quantize_by({entry}, arguments[quantize_x], scale, amax, out);
    Py_DECREF(entry);
    return result;
}

inline PyObject* dequantize_by(const ResultEntry& entry, PyObject* q, References* parts, PyObject* out) {
    if (entry.is_on_device()) return dequantize_on_device(entry, q, parts, out);
    Described<Restoring> by;
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
    int done = memory ? dequantize_parts(*by.how, by.library, from, out) : 0;
    if (!is_new) done = tell_of_all(done, by.library, &out, 1);
    if (done <= 0) Py_DECREF(out);
    return ended(done, out);
}

inline PyObject* run_dequantized(Plan* plan, PyObject* const* arguments) {
    PyObject *q = arguments[dequantize_q], *own = PyObject_GenericGetDict(q, nullptr);
    PyObject* data = own ? Py_XNewRef(PyDict_GetItemWithError(own, part_names[0])) : nullptr;
    Py_XDECREF(own);
    PyErr_Clear();
    if (!data) return nothing();
    References parts;
    PyObject* entry = find_entry(plan, data, true, [&](PyObject* one) {
        parts.clear();
        const ResultEntry own{one};
        return own.is_for(arguments[dequantize_out]) && own.has_signs(arguments[dequantize_signs], arguments[dequantize_seed]) && own.take_parts(q, &parts);
    });
    PyObject* result = entry ? dequantize_by({entry}, q, &parts, arguments[dequantize_out]) : nothing();
    Py_XDECREF(entry);
    Py_DECREF(data);
    return result;
}

}  // namespace gpucast
