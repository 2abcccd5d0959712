/* SPDX-License-Identifier: Apache-2.0
 *
 * Compare a C compiler's casts to _Float16 with the tables: cc float16.c && ./a.out tables */
#include "cast_conformance.h"

/* Cast every input of a table, and count the results that differ; -1 where there is no such table. */
#define COMPARE(SRC, TYPE)                                                                          \
    static long compare_##SRC(const char* folder) {                                                 \
        char path[4096];                                                                            \
        cct_table table;                                                                            \
        cct_array wanted, kinds;                                                                    \
        long wrong = 0;                                                                             \
        snprintf(path, sizeof path, "%s/" #SRC "-FLOAT16.cct", folder);                             \
        if (cct_open(&table, path) || cct_find(&table, "onnx", &wanted)) return -1;                 \
        if (cct_find(&table, "class", &kinds)) return -1;                                           \
        for (uint32_t i = 0; i < wanted.count; ++i) {                                               \
            const uint64_t code = cct_input(&table, i);                                             \
            TYPE x;                                                                                 \
            memcpy(&x, &code, sizeof x);                                                            \
            const _Float16 y = (_Float16)x;                                                         \
            uint16_t got;                                                                           \
            memcpy(&got, &y, sizeof got);                                                           \
            /* The convention ieee: any NaN. */                                                     \
            if (cct_code(&kinds, i) & CCT_NAN) got = (got & 0x7fff) > 0x7c00 ? cct_code(&wanted, i) : got; \
            wrong += got != cct_code(&wanted, i);                                                   \
        }                                                                                           \
        printf(#SRC " to FLOAT16: %ld of %u differ\n", wrong, wanted.count);                        \
        cct_close(&table);                                                                          \
        return wrong;                                                                               \
    }

COMPARE(FLOAT, float)
COMPARE(DOUBLE, double)
COMPARE(INT16, int16_t)

int main(int count, char** arguments) {
    if (count != 2) return 2;
    return compare_FLOAT(arguments[1]) || compare_DOUBLE(arguments[1]) || compare_INT16(arguments[1]);
}
