// SPDX-License-Identifier: Apache-2.0
// Calls of casts for many arrays, whose addresses and lengths are in tables, and what Python has to know of such arrays.
namespace gpucast {

// The place of an object in a tuple; its length for one that is not there.
inline Length place_in(Object* tuple, Length count, const Object* x) {
    Length place = 0;
    while (place < count && python.tuple_item(tuple, place) != x) ++place;
    return place;
}

}  // namespace gpucast

// Bytes that are equal for lists of arrays that are alike in dtypes, shapes, and whether they can be written; None where
// one is not row-major and aligned, or not of one of the dtypes, which are `count`.
GPUCAST_EXPORT gpucast::Object* describe(gpucast::Object* list, gpucast::Object* dtypes, gpucast::Length count) {
    using namespace gpucast;
    const Length arrays = python.list_size(list);
    if (arrays < 0) return nullptr;
    Length words = 0;
    for (Length i = 0; i < arrays; ++i) {
        const Array* x = plain_array(python.list_item(list, i));
        if (!x) return nothing();
        words += 1 + x->dimensions;
    }
    Object* found = python.new_bytes(nullptr, words * Length(sizeof(Length)));
    if (!found) return nullptr;
    Length* word = reinterpret_cast<Length*>(python.bytes(found));
    const Object* dtype = nullptr;
    Length place = count;
    for (Length i = 0; i < arrays; ++i) {
        const Array* x = plain_array(python.list_item(list, i));
        // Most often all are of one.
        if (x->dtype != dtype) place = place_in(dtypes, count, dtype = x->dtype);
        if (place == count) {
            python.dec_ref(found);
            return nothing();
        }
        *word++ = place << 32 | x->dimensions << 1 | ((x->flags & writeable) != 0);
        for (int j = 0; j < x->dimensions; ++j) *word++ = x->shape[j];
    }
    return found;
}

// The addresses of the first elements of a list of arrays.
GPUCAST_EXPORT void addresses_of(gpucast::Object* list, gpucast::u64* addresses) {
    using namespace gpucast;
    const Length arrays = python.list_size(list);
    for (Length i = 0; i < arrays; ++i) {
        addresses[i] = u64(reinterpret_cast<Address>(fields(python.list_item(list, i))->data));
    }
}

// As `describe`, of tensors of one class that are row-major and on the host.
GPUCAST_EXPORT gpucast::Object* describe_tensors(gpucast::Object* list, gpucast::View* view) {
    using namespace gpucast;
    const Length tensors = python.list_size(list);
    if (tensors < 0) return nullptr;
    Tensor x;
    u64 size;
    Length words = 0;
    for (Length i = 0; i < tensors; ++i) {
        Object* one = python.list_item(list, i);
        if (class_of(one) != class_of(python.list_item(list, 0)) || !is_plain_tensor(one, view, &x, &size)) {
            return nothing();
        }
        words += 1 + x.dimensions;
    }
    Object* found = python.new_bytes(nullptr, words * Length(sizeof(Length)));
    Length* word = found ? reinterpret_cast<Length*>(python.bytes(found)) : nullptr;
    for (Length i = 0; word && i < tensors; ++i) {
        is_plain_tensor(python.list_item(list, i), view, &x, &size);
        *word++ = Length(x.dimensions) << 32 | x.lanes << 16 | x.bits << 8 | x.kind;
        for (int j = 0; j < x.dimensions; ++j) *word++ = Length(x.shape[j]);
    }
    return found;
}

// The addresses of the first elements of a list of tensors; 0 where there is none.
GPUCAST_EXPORT void addresses_of_tensors(gpucast::Object* list, gpucast::View* view, gpucast::u64* addresses) {
    using namespace gpucast;
    const Length tensors = python.list_size(list);
    Tensor x;
    for (Length i = 0; i < tensors; ++i) {
        const bool is_known = is_viewed(python.list_item(list, i), view, &x);
        addresses[i] = is_known ? u64(reinterpret_cast<Address>(x.data)) : 0;
    }
}

// A list of new arrays, of the shapes of those in a list.
GPUCAST_EXPORT gpucast::Object* new_arrays(gpucast::Object* list, gpucast::Object* dtype) {
    using namespace gpucast;
    const Length arrays = python.list_size(list);
    Object* made = python.new_list(arrays);
    for (Length i = 0; made && i < arrays; ++i) {
        Object* x = new_array(fields(python.list_item(list, i)), dtype);
        if (!x) {
            python.dec_ref(made);
            return nullptr;
        }
        python.set_list_item(made, i, x);
    }
    return made;
}

GPUCAST_EXPORT void cast_each(gpucast::CastArray* cast, const gpucast::u64* from, const gpucast::u64* to,
                              const gpucast::u64* sizes, gpucast::u64 count) {
    for (gpucast::u64 i = 0; i < count; ++i) cast(gpucast::source(from[i]), gpucast::destination(to[i]), sizes[i]);
}
