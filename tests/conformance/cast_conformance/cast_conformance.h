/* SPDX-License-Identifier: Apache-2.0
 *
 * Read a table of cast-conformance in C or C++: this file alone, on a little-endian machine.
 *
 *     cct_table table;
 *     cct_array input, wanted;
 *     if (cct_open(&table, "FLOAT-FLOAT16.cct") == 0 && cct_column(&table, "onnx", &wanted) == 0) {
 *         for (uint32_t i = 0; i < wanted.count; ++i)
 *             check(cct_input(&table, i), cct_code(&wanted, i));
 *         cct_close(&table);
 *     }
 */
#ifndef CAST_CONFORMANCE_H
#define CAST_CONFORMANCE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits of the array "class". */
enum { CCT_NAN = 1, CCT_INFINITE = 2, CCT_OVERFLOW = 4, CCT_SUBNORMAL = 8, CCT_ZERO = 16, CCT_NEGATIVE = 32 };

/* `size` bytes an element, `count` elements. */
typedef struct {
    uint32_t size, count;
    const unsigned char* data;
} cct_array;

typedef struct {
    unsigned char* bytes;
    size_t length;
    uint32_t arrays;
    int complete; /* whether element i is the result for code i */
    cct_array input;
} cct_table;

static inline uint32_t cct_word(const unsigned char* at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Find an array by its name: 0, or -1 where the table has none or is damaged. */
static inline int cct_find(const cct_table* table, const char* name, cct_array* found) {
    if (strlen(name) > 20) return -1;
    for (uint32_t i = 0; i < table->arrays; ++i) {
        const unsigned char* entry = table->bytes + 16 + 32 * (size_t)i;
        if (strncmp((const char*)entry, name, 20) != 0) continue;
        const uint64_t size = cct_word(entry + 20), count = cct_word(entry + 24), place = cct_word(entry + 28);
        if (size == 0 || size > 8 || place > table->length || size * count > table->length - place) return -1;
        found->size = (uint32_t)size;
        found->count = (uint32_t)count;
        found->data = table->bytes + place;
        return 0;
    }
    return -1;
}

/* Find the expected codes of a column; one that is missing is equal to "onnx". */
static inline int cct_column(const cct_table* table, const char* name, cct_array* found) {
    return cct_find(table, name, found) == 0 ? 0 : cct_find(table, "onnx", found);
}

static inline void cct_close(cct_table* table) {
    free(table->bytes);
    memset(table, 0, sizeof *table);
}

/* Read a table: 0, or -1 where the file is missing or is no table. */
static inline int cct_open(cct_table* table, const char* path) {
    memset(table, 0, sizeof *table);
    FILE* file = fopen(path, "rb");
    if (!file) return -1;
    long length = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (length >= 16 && fseek(file, 0, SEEK_SET) == 0) table->bytes = (unsigned char*)malloc((size_t)length);
    if (table->bytes) table->length = fread(table->bytes, 1, (size_t)length, file);
    fclose(file);
    if (!table->bytes || table->length != (size_t)length || memcmp(table->bytes, "CCT1", 4) != 0) {
        cct_close(table);
        return -1;
    }
    table->arrays = cct_word(table->bytes + 4);
    if (table->arrays > (table->length - 16) / 32) {
        cct_close(table);
        return -1;
    }
    table->complete = cct_find(table, "input", &table->input) != 0;
    return 0;
}

/* Element i of an array, as an unsigned code. */
static inline uint64_t cct_code(const cct_array* array, uint32_t i) {
    uint64_t code = 0;
    memcpy(&code, array->data + (size_t)array->size * i, array->size);
    return code;
}

/* The code that case i casts. */
static inline uint64_t cct_input(const cct_table* table, uint32_t i) {
    return table->complete ? i : cct_code(&table->input, i);
}

#endif
