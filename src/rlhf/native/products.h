/* Products of small matrices that stay in registers and the nearest cache, and how their factors are laid out for them.
 *
 *   HALF         1 where elements are bfloat16, 0 where they are float32
 *   VALUE_WIDTH  of the rows of elements whose neighbours may share a word
 *   PAIRS        0 to do without the processor's products of bfloat16
 *
 * Every product is made of pieces of ROWS x (1 or 2 vectors) that stay in registers. Its right factor is laid out beforehand so that it
 * is read from front to back, its left factor one word at a time. A word is a float32; or, where the processor multiplies bfloat16, two
 * of these, neighbours along the sum. All sums are in float32.
 */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "numbers.h"

#ifndef PAIRS
#if HALF && defined(__AVX512BF16__) && VALUE_WIDTH % 2 == 0
#define PAIRS 1
#else
#define PAIRS 0
#endif
#endif

#if PAIRS
#include <immintrin.h>
#define STEP 2 /* numbers in a word */
#else
#define STEP 1
#endif

#define ROWS 8            /* of a piece */
#define PANEL (2 * LANES) /* columns of a piece */

#define INLINE static inline __attribute__((always_inline))
#define UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))

typedef float v16 __attribute__((vector_size(64)));
typedef float v16_anywhere __attribute__((vector_size(64), aligned(4), may_alias)); /* in memory */
typedef float word __attribute__((may_alias)); /* a float32, or with PAIRS two bfloat16 */

INLINE v16 vector(const word *x) { return *(const v16_anywhere *)x; }

INLINE v16 multiply_add(v16 sum, float x, v16 y, const int pairs) {
    v16 all = x - (v16){0};
#if PAIRS
    if (pairs) return (v16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(x), (__m512bh)y);
#endif
    (void)pairs;
    return sum + all * y;
}

/* A piece: out[r][:] (+)= sum over i < steps of x[r * x_row + i * x_step] * y[i * y_step + :], LANES * vectors columns. */
INLINE void piece(float *restrict out, int64_t out_row, const word *restrict x, int64_t x_row, int64_t x_step, const word *restrict y,
                  int64_t y_step, int64_t steps, const int vectors, const int pairs, const int fresh) {
    v16 sums[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sums[r][v] = fresh ? (v16){0} : vector(out + r * out_row + v * LANES);
    for (int64_t i = 0; i < steps; i++) {
        v16 y0 = vector(y + i * y_step), y1 = vectors > 1 ? vector(y + i * y_step + LANES) : y0;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            float factor = x[r * x_row + i * x_step];
            sums[r][0] = multiply_add(sums[r][0], factor, y0, pairs);
            if (vectors > 1) sums[r][1] = multiply_add(sums[r][1], factor, y1, pairs);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) *(v16_anywhere *)(out + r * out_row + v * LANES) = sums[r][v];
}

/* The same for `columns` columns, a multiple of LANES. */
INLINE void product(float *out, int64_t out_row, const word *x, int64_t x_row, int64_t x_step, const word *y, int64_t y_step, int64_t steps,
                    int64_t columns, const int pairs, const int fresh) {
    int64_t c = 0;
    for (; c + PANEL <= columns; c += PANEL) piece(out + c, out_row, x, x_row, x_step, y + c, y_step, steps, 2, pairs, fresh);
    if (c < columns) piece(out + c, out_row, x, x_row, x_step, y + c, y_step, steps, 1, pairs, fresh);
}

/* LANES words, each of a number of one row and the number below it. */
INLINE void join(word *out, const float *above, const float *below) {
#if PAIRS
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(above)));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(below)));
    _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
    (void)below;
    *(v16_anywhere *)out = vector(above);
#endif
}

/* LANES numbers as LANES / STEP words, each of neighbours in the row. */
INLINE void narrow(word *out, const float *x) {
#if PAIRS
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x)));
#else
    *(v16_anywhere *)out = vector(x);
#endif
}

/* rows [count, width] -> words [count / STEP, width], count a multiple of STEP, width of LANES. */
static void join_rows(word *restrict out, const float *restrict rows, int64_t count, int64_t width) {
    for (int64_t row = 0; row < count; row += STEP)
        for (int64_t c = 0; c < width; c += LANES)
            join(out + row / STEP * width + c, rows + row * width + c, rows + (row + STEP - 1) * width + c);
}

/* words [PANEL, width] -> panel [width, PANEL], of `count` columns. */
INLINE void transpose(word *restrict out, const word *restrict rows, const int64_t width, const int64_t count) {
    for (int64_t d = 0; d < count; d++)
        for (int64_t k = 0; k < PANEL; k++) out[d * PANEL + k] = rows[k * width + d];
}

/* `count` rows of a head in float32, and zeros below them until `room` and beside them until `wide`. */
#define ROWS_OF(name, type, get)                                                                                                      \
    INLINE void name(float *restrict out, const type *restrict x, int64_t stride, int64_t count, int64_t room, const int64_t width,  \
                     const int64_t wide, float factor) {                                                                              \
        for (int64_t row = 0; row < room; row++, out += wide, x += stride) {                                                          \
            int64_t filled = row < count ? width : 0;                                                                                 \
            if (filled)                                                                                                               \
                for (int64_t d = 0; d < width; d++) out[d] = get(x[d]) * factor;                                                      \
            for (int64_t d = filled; d < wide; d++) out[d] = 0;                                                                       \
        }                                                                                                                             \
    }
ROWS_OF(rows_of_floats, float, itself)
ROWS_OF(rows_of_elements, element, load)

static float *take(float **room, int64_t count) {
    float *taken = *room;
    *room += UP(count, LANES);
    return taken;
}

#endif
