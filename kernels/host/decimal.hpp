// SPDX-License-Identifier: Apache-2.0
// Decimals of floats and floats of decimals, by powers of ten of 128 bits. The shortest decimal is that of Schubfach (Giulietti,
// "The Schubfach way to render doubles"), which needs no second try; the product of digits and a power of ten (Lemire, "Number
// parsing at a gigabyte per second") gives more bits than any type has, rounded to odd, so that one more rounding is right.
#pragma once
#include "types.hpp"

namespace gpucast {

typedef unsigned __int128 u128;
typedef long long i64;

// The significand of a power of ten: from 2^127 on, cut off.
struct Power {
    u64 upper, lower;
};

enum : int { least_power = -348, most_power = 348, last_exact_power = 55 };

// The binary exponent of a power of ten, rounded down.
inline int exponent_of_power(int power) { return (power * 1741647) >> 19; }

class Powers {
   public:
    Powers() {
        // Of 5, which has the same bits as 10: cut off once more, quotients stay those of the exact number.
        enum : int { words = 20 };
        u64 product[words] = {1}, quotient[words] = {};
        quotient[words - 1] = 1;
        for (int power = 0; power <= most_power; ++power) {
            each_[power - least_power] = upper_bits(product, words), each_[-power - least_power] = upper_bits(quotient, words);
            u64 carry = 0, rest = 0;
            for (u64& word : product) {
                const u128 own = u128(word) * 5 + carry;
                word = u64(own), carry = u64(own >> 64);
            }
            for (int i = words; i-- > 0;) {
                // With the rest of the words above: 2^64 is 5 * fifth + 1.
                const u64 fifth = ~u64(0) / 5, sum = rest + quotient[i] % 5;
                quotient[i] = rest * fifth + quotient[i] / 5 + sum / 5, rest = sum % 5;
            }
        }
    }
    const Power& operator[](int power) const { return each_[power - least_power]; }

   private:
    static Power upper_bits(const u64* words, int count) {
        int last = count - 1;
        while (!words[last]) --last;
        const int zeros = __builtin_clzll(words[last]);
        const auto word = [&](int i) { return i < 0 ? 0 : words[i]; };
        const auto aligned = [&](int i) { return word(i) << zeros | (zeros ? word(i - 1) >> (64 - zeros) : 0); };
        return {aligned(last), aligned(last - 1)};
    }
    Power each_[most_power - least_power + 1];
};

static const Powers powers;

// ---- the shortest decimal ----

// digits * 10^exponent.
struct Decimal {
    u64 digits;
    int exponent;
};

inline u64 product_to_odd(const Power& power, u64 factor) {
    const u128 low = u128(power.lower) * factor, high = u128(power.upper) * factor + u64(low >> 64);
    return u64(high >> 64) | (u64(high) > 1);
}

// Of the decimals that read back as significand * 2^exponent, one of the fewest digits, the closest of these, and of two the even
// one; trailing zeros may follow. is_power: the number below is closer than that above.
inline Decimal shortest_decimal(u64 significand, int exponent, bool is_power) {
    const int power = (exponent * 1262611 - (is_power ? 524031 : 0)) >> 22;
    Power by = powers[-power];
    if (-power < 0 || -power > last_exact_power) by.upper += ++by.lower == 0;
    const int shift = exponent + exponent_of_power(-power) + 1;
    // Ties read back to even: the ends belong to the interval of an even number. All in quarters.
    const u64 is_odd = significand & 1, center = 4 * significand;
    const u64 lower = product_to_odd(by, (center - 2 + is_power) << shift) + is_odd;
    const u64 middle = product_to_odd(by, center << shift), upper = product_to_odd(by, (center + 2) << shift) - is_odd;
    const u64 floor = middle / 4, tenth = floor / 10;
    if (floor >= 10) {
        const bool is_below = lower <= 40 * tenth, is_above = 40 * tenth + 40 <= upper;
        if (is_below != is_above) return {tenth + is_above, power + 1};
    }
    const bool is_below = lower <= 4 * floor, is_above = 4 * floor + 4 <= upper;
    if (is_below != is_above) return {floor + is_above, power};
    const u64 tie = 4 * floor + 2;
    return {floor + (middle > tie || (middle == tie && (floor & 1))), power};
}

// ---- the float of a decimal ----

// significand * 2^exponent, from 2^63 on; the last bit is set where anything was cut off.
struct OddFloat {
    u64 significand;
    int exponent;
};

// False where the bits of the powers do not tell. The digits are not 0.
inline bool odd_float_of(u64 digits, i64 power, OddFloat* found) {
    // No type reaches so far.
    if (power < least_power || power > most_power) {
        *found = {u64(1) << 63 | 1, power < 0 ? -3000 : 3000};
        return true;
    }
    const int zeros = __builtin_clzll(digits);
    const Power& by = powers[int(power)];
    const u64 factor = digits << zeros;
    u128 low = u128(by.lower) * factor, high = u128(by.upper) * factor + u64(low >> 64);
    u64 last = u64(low);
    int exponent = exponent_of_power(int(power)) + 1 - zeros;
    if (!(high >> 127)) high = high << 1 | last >> 63, last <<= 1, --exponent;
    const u64 upper = u64(high >> 64), rest = u64(high);
    if (power >= 0 && power <= last_exact_power) {
        *found = {upper | ((rest | last) != 0), exponent};
        return true;
    }
    // The power was cut off, so that the product is a little larger, by less than 2 in `rest`; it is no whole number of these,
    // but for a quotient without a rest, which is an integer of 64 bits.
    if (rest < ~u64(1)) {
        *found = {upper | 1, exponent};
        return true;
    }
    if (power >= 0 || power < -27) return false;
    u64 divisor = 1;
    for (i64 i = 0; i < -power; ++i) divisor *= 5;
    if (digits % divisor) return false;
    const u64 quotient = digits / divisor;
    const int own = __builtin_clzll(quotient);
    *found = {quotient << own, int(power) - own};
    return true;
}

// The code of a DOUBLE: the nearest one, ties to even.
inline u64 nearest_double(const OddFloat& x) {
    const int field = x.exponent + 63 + 1023, drop = field > 0 ? 11 : 12 - field;
    if (field >= 2047) return u64(2047) << 52;
    if (drop > 64) return 0;
    const u64 half = u64(1) << (drop - 1), whole = drop == 64 ? 0 : x.significand >> drop, rest = x.significand & (2 * half - 1);
    return (field > 0 ? u64(field - 1) << 52 : 0) + whole + (rest > half || (rest == half && (whole & 1)));
}

// The code of a DOUBLE that shorter floats round as the number itself. Where no other type reaches, it is some finite number.
inline u64 odd_double(const OddFloat& x) {
    const int exponent = x.exponent + 63, known = exponent > 1000 ? 1000 : exponent < -1000 ? -1000 : exponent;
    const u64 whole = x.significand >> 11 | ((x.significand & 0x7ff) != 0);
    return (u64(known + 1022) << 52) + whole;
}

}  // namespace gpucast
