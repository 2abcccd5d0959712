// SPDX-License-Identifier: Apache-2.0
// Text of numbers and numbers of text, as gpucast/core/strings.py defines them, from and to flat arrays of objects.
#pragma once
#include "arrays.hpp"
#include "decimal.hpp"

namespace gpucast {

// ---- reading ----

// A text as a number: digits * 10^power, and more where digits that are not 0 were left out.
struct Parsed {
    enum Kind { finite, infinite, nan } kind;
    bool is_negative, has_more;
    u64 digits;
    i64 power;
};

inline bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline bool is_digit(char c) { return u8(c - '0') < 10; }

// Whether a text from `at` on begins with a word, of lower-case letters, in either case.
inline bool begins_with(const char* at, const char* end, const char* word) {
    for (; *word; ++at, ++word) {
        if (at == end || (*at | 0x20) != *word) return false;
    }
    return true;
}

// A number and its sign; null where there is none, else behind it.
inline const char* parse_number(const char* at, const char* end, Parsed* found) {
    *found = {};
    if (at < end && (*at == '+' || *at == '-')) found->is_negative = *at++ == '-';
    // As many as 64 bits hold.
    const int most = 19;
    int count = 0;
    bool has_digits = false, has_point = false;
    const auto take_digits = [&](i64 step) {
        for (; at < end && is_digit(*at); ++at) {
            has_digits = true;
            if (count < most) found->digits = 10 * found->digits + u64(*at - '0'), count += found->digits != 0, found->power += step;
            else found->has_more = found->has_more || *at != '0', found->power += step + 1;
        }
    };
    take_digits(0);
    if (at < end && *at == '.') ++at, has_point = true, take_digits(-1);
    if (!has_digits) {
        if (has_point) return nullptr;
        if (begins_with(at, end, "nan")) return found->kind = Parsed::nan, at + 3;
        if (!begins_with(at, end, "inf")) return nullptr;
        found->kind = Parsed::infinite;
        return begins_with(at + 3, end, "inity") ? at + 8 : at + 3;
    }
    if (at < end && (*at | 0x20) == 'e') {
        ++at;
        const bool is_minus = at < end && *at == '-';
        if (at < end && (*at == '+' || *at == '-')) ++at;
        if (at == end || !is_digit(*at)) return nullptr;
        i64 exponent = 0;
        // Longer ones outrun any text.
        const i64 limit = i64(1) << 58;
        for (; at < end && is_digit(*at); ++at) exponent = exponent < limit / 10 ? 10 * exponent + (*at - '0') : limit;
        found->power += is_minus ? -exponent : exponent;
    }
    return at;
}

// What stands between blanks.
inline void strip(const char** at, const char** end) {
    while (*at < *end && is_blank(**at)) ++*at;
    while (*at < *end && is_blank((*end)[-1])) --*end;
}

inline bool parse_text(const char* at, const char* end, Parsed* found) {
    strip(&at, &end);
    return at < end && parse_number(at, end, found) == end;
}

// What the numbers of a text become.
enum class Reading : unsigned { nearest_doubles, odd_doubles, integers, bools };

// False where the bits of the powers do not tell.
inline bool double_code(const Parsed& x, bool to_odd, u64* code) {
    const u64 infinite = u64(2047) << 52;
    if (x.kind != Parsed::finite) {
        *code = x.kind == Parsed::infinite ? infinite : infinite | u64(1) << 51;
    } else if (!x.digits) {
        *code = 0;
    } else {
        OddFloat own, next;
        if (!odd_float_of(x.digits, x.power, &own)) return false;
        if (x.has_more) {
            if (!odd_float_of(x.digits + 1, x.power, &next)) return false;
            own.significand |= 1;
            if (own.exponent != next.exponent || own.significand != (next.significand | 1)) return false;
        }
        *code = to_odd ? odd_double(own) : nearest_double(own);
    }
    *code |= u64(x.is_negative) << 63;
    return true;
}

// An integer without its fraction; false where it is out of range, or no integer.
inline bool integer_code(const Parsed& x, i64 least, u64 most, u64* code) {
    if (x.kind != Parsed::finite || x.power > 19 || (x.power >= 0 && x.has_more)) return false;
    u128 magnitude = x.digits;
    for (i64 i = 0; i < x.power; ++i) magnitude *= 10;
    for (i64 i = x.power; i < 0 && magnitude; ++i) magnitude /= 10;
    if (magnitude > (x.is_negative ? u128(0 - u64(least)) : u128(most))) return false;
    *code = x.is_negative ? 0 - u64(magnitude) : u64(magnitude);
    return true;
}

inline bool bool_code(const char* at, const char* end, u8* code) {
    strip(&at, &end);
    const bool is_true = begins_with(at, end, "true"), is_false = begins_with(at, end, "false");
    if ((is_true && end - at == 4) || (is_false && end - at == 5)) {
        *code = is_true;
        return true;
    }
    Parsed x;
    if (!parse_text(at, end, &x)) return false;
    *code = x.kind != Parsed::finite || x.digits || x.has_more;
    return true;
}

// The characters of a str or of bytes; null, without an exception, for other objects.
inline const char* characters(PyObject* text, Py_ssize_t* size) {
    if (PyUnicode_Check(text)) {
        const char* found = PyUnicode_AsUTF8AndSize(text, size);
        if (!found) PyErr_Clear();
        return found;
    }
    if (!PyBytes_Check(text)) return nullptr;
    *size = PyBytes_Size(text);
    return PyBytes_AsString(text);
}

inline bool is_vector(PyObject* x, int number) {
    return PyArray_CheckExact(x) && PyArray_NDIM(array_of(x)) == 1 && is_flat(array_of(x)) && PyArray_DESCR(array_of(x))->type_num == number;
}

// read_texts(reading, texts, start, out, least, most): numbers of the texts from `start` on, in a flat array of objects, to
// another: DOUBLEs, INT64 or UINT64 between limits, or BOOL. Returns where it ended: there is no number, or one that only exact
// arithmetic can tell.
inline PyObject* read_texts(PyObject*, PyObject* arguments) {
    PyObject *texts, *out;
    unsigned asked;
    long long start, least;
    unsigned long long most;
    if (!PyArg_ParseTuple(arguments, "IOLOLK", &asked, &texts, &start, &out, &least, &most)) return nullptr;
    const Reading reading = Reading(asked);
    const int numbers[] = {NPY_DOUBLE, NPY_DOUBLE, least < 0 ? NPY_INT64 : NPY_UINT64, NPY_BOOL};
    if (asked > 3 || !is_vector(texts, NPY_OBJECT) || !is_vector(out, numbers[asked]) || !is_same_shape(array_of(texts), array_of(out))) {
        PyErr_SetString(PyExc_TypeError, "read_texts: expected flat arrays of one size");
        return nullptr;
    }
    PyObject** each = static_cast<PyObject**>(PyArray_DATA(array_of(texts)));
    void* const data = PyArray_DATA(array_of(out));
    const npy_intp size = PyArray_SIZE(array_of(texts));
    npy_intp i = npy_intp(start);
    for (; i >= 0 && i < size; ++i) {
        Py_ssize_t length;
        const char* text = each[i] ? characters(each[i], &length) : nullptr;
        if (!text) break;
        if (reading == Reading::bools) {
            if (!bool_code(text, text + length, static_cast<u8*>(data) + i)) break;
            continue;
        }
        Parsed x;
        u64* const code = static_cast<u64*>(data) + i;
        if (!parse_text(text, text + length, &x)) break;
        if (!(reading == Reading::integers ? integer_code(x, least, most, code) : double_code(x, reading == Reading::odd_doubles, code))) break;
    }
    return PyLong_FromSsize_t(i);
}

// ---- writing ----

// Characters of a number, and as many as may be written behind it; significant digits of one.
enum : int { longest_number = 48, most_digits = 17 };

static const u64 powers_of_ten[] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000, 1000000000000,
    10000000000000, 100000000000000, 1000000000000000, 10000000000000000, 100000000000000000, 1000000000000000000,
    10000000000000000000ull,
};

// How many digits a number above 0 has.
inline int count_digits(u64 x) {
    // log10(2) is 1233 / 4096, nearly.
    const int least = ((64 - __builtin_clzll(x)) * 1233) >> 12;
    return least + (x >= powers_of_ten[least]);
}

// Eight digits of a number as the bytes of a word, the first one lowest: two halves, four pairs, and all of them at a time.
inline u64 eight_digits(u64 x) {
    const u64 halves = x / 10000 | x % 10000 << 32;
    const u64 hundreds = (halves * 10486) >> 20 & 0x0000007f0000007f, pairs = hundreds | (halves - 100 * hundreds) << 16;
    const u64 tens = (pairs * 103) >> 10 & 0x000f000f000f000f;
    return tens | (pairs - 10 * tens) << 8;
}

inline void write_eight(u64 digits, char* to) {
    digits |= 0x3030303030303030;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    digits = __builtin_bswap64(digits);
#endif
    memcpy(to, &digits, sizeof digits);
}

// The digits of a number of `count`, 17 at most, and zeros behind them; returns how many there are without trailing zeros.
inline int write_significant(u64 x, int count, char* to) {
    x *= powers_of_ten[most_digits - count];
    const u64 first = x / powers_of_ten[16], rest = x % powers_of_ten[16];
    const u64 upper = eight_digits(rest / powers_of_ten[8]), lower = eight_digits(rest % powers_of_ten[8]);
    *to = char('0' + first);
    write_eight(upper, to + 1), write_eight(lower, to + 9);
    const int of_lower = 17 - __builtin_clzll(lower | 1) / 8, of_upper = upper ? 9 - __builtin_clzll(upper) / 8 : 1;
    return lower ? of_lower : of_upper;
}

inline int write_digits(u64 x, char* to) {
    const int count = x ? count_digits(x) : 1;
    char digits[longest_number];
    if (count > most_digits) {
        const u64 front = x / powers_of_ten[most_digits - 1], count_of_front = u64(count - (most_digits - 1));
        write_significant(front, int(count_of_front), to);
        write_significant(x % powers_of_ten[most_digits - 1] + powers_of_ten[most_digits - 1], most_digits, digits);
        memcpy(to + count_of_front, digits + 1, most_digits - 1);
    } else if (x) {
        write_significant(x, count, digits);
        memcpy(to, digits, most_digits);
    } else {
        *to = '0';
    }
    return count;
}

inline char* write_word(const char* word, char* to) {
    while (*word) *to++ = *word++;
    return to;
}

// A float of 64 bits or fewer by its code, as Python's repr lays it out. Returns the end.
inline char* write_float(u64 code, int bits, int mantissa_bits, char* to) {
    const u64 sign = u64(1) << (bits - 1), hidden = u64(1) << mantissa_bits, magnitude = code & (sign - 1);
    const int bias = (1 << (bits - 2 - mantissa_bits)) - 1;
    const u64 infinite = u64(2 * bias + 1) << mantissa_bits;
    if (magnitude > infinite) return write_word("NaN", to);
    // Choices without branches: signs and lengths cannot be predicted.
    *to = '-', to += (code & sign) != 0;
    if (magnitude == infinite) return write_word("INF", to);
    if (!magnitude) return write_word("0.0", to);
    const int field = int(magnitude >> mantissa_bits);
    const u64 fraction = magnitude & (hidden - 1);
    Decimal x = shortest_decimal(field ? fraction | hidden : fraction, (field ? field : 1) - bias - mantissa_bits, !fraction && field > 1);
    const int all = count_digits(x.digits), k = x.exponent + all - 1;
    char digits[longest_number];
    const int count = write_significant(x.digits, all, digits);
    // Copies are longer than need be, and of one length, which takes less time.
    if (k >= -4 && k < 0) {
        memcpy(to, "0.000", 5), to += 1 - k;
        memcpy(to, digits, most_digits);
        return to + count;
    }
    if (k >= 0 && k < 16) {
        memcpy(to, digits, most_digits), to += k + 1;
        *to++ = '.';
        memcpy(to, digits + k + 1, 16);
        return to + (count > k + 1 ? count - k - 1 : 1);
    }
    *to++ = digits[0];
    if (count > 1) *to++ = '.';
    memcpy(to, digits + 1, 16), to += count - 1;
    *to++ = 'e', *to++ = k < 0 ? '-' : '+';
    const int size = k < 0 ? -k : k;
    if (size < 10) *to++ = '0';
    return to + write_digits(u64(size), to);
}

inline char* write_integer(u64 code, bool is_signed, char* to) {
    const bool is_negative = is_signed && code >> 63;
    if (is_negative) *to++ = '-';
    return to + write_digits(is_negative ? 0 - code : code, to);
}

// write_texts(x, out): the texts of FLOAT16, FLOAT, DOUBLE, INT64 or UINT64, from a flat array to one of objects.
inline PyObject* write_texts(PyObject*, PyObject* arguments) {
    PyObject *given, *out;
    if (!PyArg_ParseTuple(arguments, "OO", &given, &out)) return nullptr;
    const int number = PyArray_Check(given) ? PyArray_DESCR(array_of(given))->type_num : -1;
    const bool is_float = number == NPY_HALF || number == NPY_FLOAT || number == NPY_DOUBLE;
    if (!(is_float || number == NPY_INT64 || number == NPY_UINT64) || !is_vector(given, number) || !is_vector(out, NPY_OBJECT) ||
        !is_same_shape(array_of(given), array_of(out))) {
        PyErr_SetString(PyExc_TypeError, "write_texts: expected flat arrays of one size");
        return nullptr;
    }
    const u8* const data = static_cast<const u8*>(PyArray_DATA(array_of(given)));
    PyObject** each = static_cast<PyObject**>(PyArray_DATA(array_of(out)));
    const int bytes = int(PyArray_ITEMSIZE(array_of(given))), mantissa_bits = number == NPY_HALF ? 10 : number == NPY_FLOAT ? 23 : 52;
    for (npy_intp i = 0; i < PyArray_SIZE(array_of(given)); ++i) {
        u64 code = 0;
        memcpy(&code, data + i * bytes, size_t(bytes));
        char text[longest_number];
        char* const end = is_float ? write_float(code, 8 * bytes, mantissa_bits, text) : write_integer(code, number == NPY_INT64, text);
        PyObject* made = PyUnicode_FromStringAndSize(text, end - text);
        if (!made) return nullptr;
        PyObject* before = each[i];
        each[i] = made;
        Py_XDECREF(before);
    }
    return nothing();
}

}  // namespace gpucast
