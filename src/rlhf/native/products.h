/* Products of small matrices that stay in registers and the nearest cache, and how their factors are laid out for them.
 *
 *   HALF         1 where elements are bfloat16, 0 where they are float32
 *   VALUE_WIDTH  of the rows of elements whose neighbors may share a word
 *   WIDTH        of the other rows
 *   PAIRS        0 to do without the processor's products of bfloat16
 *   TILES        0 to do without its products of tiles of bfloat16 (AMX)
 *
 * Every product is made of pieces of ROWS x (1 or 2 vectors) that stay in registers. Its right factor is laid out beforehand so that it
 * is read from front to back, its left factor one word at a time. A word is a float32; or, where the processor multiplies bfloat16, two
 * of these, neighbors along the sum. Where it multiplies tiles of them, pieces are squares of PANEL x PANEL. All sums are in float32.
 */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "vectors.h"

#ifndef PAIRS
#if HALF && defined(__AVX512BF16__) && VALUE_WIDTH % 2 == 0
#define PAIRS 1
#else
#define PAIRS 0
#endif
#endif

#ifndef TILES
#if PAIRS && defined(__AMX_BF16__) && defined(__linux__) && WIDTH % 32 == 0 && VALUE_WIDTH % 32 == 0
#define TILES 1
#else
#define TILES 0
#endif
#endif

#if TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define STEP (PAIRS ? 2 : 1)         /* numbers in a word */
#define ROWS 8                       /* of a piece */
#define PANEL (2 * LANES)            /* columns of a piece */
#define BAND (TILES ? PANEL : ROWS)  /* rows of a product of words */
#define WIDE (TILES ? PANEL : LANES) /* its columns are a multiple of it */

#define ALIGNED __attribute__((aligned(64)))

typedef float word __attribute__((may_alias)); /* a float32, or with PAIRS two bfloat16 */

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
        for (int v = 0; v < vectors; v++) keep(out + r * out_row + v * LANES, sums[r][v]);
}

/* The same for `columns` columns, a multiple of LANES. */
INLINE void product(float *out, int64_t out_row, const word *x, int64_t x_row, int64_t x_step, const word *y, int64_t y_step, int64_t steps,
                    int64_t columns, const int pairs, const int fresh) {
    int64_t c = 0;
    for (; c + PANEL <= columns; c += PANEL) piece(out + c, out_row, x, x_row, x_step, y + c, y_step, steps, 2, pairs, fresh);
    if (c < columns) piece(out + c, out_row, x, x_row, x_step, y + c, y_step, steps, 1, pairs, fresh);
}

/* Whether the system lets this process work with tiles: Linux requires a request. */
int tiles_allowed(void) {
#if TILES
    return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* data of tiles */);
#else
    return 1;
#endif
}

#if TILES
/* Eight tiles of 16 rows of 64 bytes; others in this process shape them otherwise. */
INLINE void begin_tiles(void) {
    struct {
        uint8_t palette, row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) shape.row_bytes[tile] = 64, shape.rows[tile] = 16;
    __asm__ volatile("" ::"r"(&shape) : "memory"); /* gcc 12 takes eight bytes of it for read, and the rest for unused */
    _tile_loadconfig(&shape);
}
INLINE void end_tiles(void) { _tile_release(); }

/* A square of four tiles: out (+)= x [PANEL, steps] y [steps, PANEL], steps a multiple of LANES. */
INLINE void square(float *out, int64_t out_row, const word *x, int64_t x_row, const word *y, int64_t y_step, int64_t steps,
                   const int fresh) {
    const int64_t word_bytes = sizeof(word), down = LANES * out_row;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, out, out_row * word_bytes);
        _tile_loadd(1, out + LANES, out_row * word_bytes);
        _tile_loadd(2, out + down, out_row * word_bytes);
        _tile_loadd(3, out + down + LANES, out_row * word_bytes);
    }
    for (int64_t i = 0; i < steps; i += LANES) {
        _tile_loadd(4, x + i, x_row * word_bytes);
        _tile_loadd(5, x + LANES * x_row + i, x_row * word_bytes);
        _tile_loadd(6, y + i * y_step, y_step * word_bytes);
        _tile_loadd(7, y + i * y_step + LANES, y_step * word_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, out_row * word_bytes);
    _tile_stored(1, out + LANES, out_row * word_bytes);
    _tile_stored(2, out + down, out_row * word_bytes);
    _tile_stored(3, out + down + LANES, out_row * word_bytes);
}
#else
INLINE void begin_tiles(void) {}
INLINE void end_tiles(void) {}
#endif

/* out [rows, columns] (+)= x [rows, steps] y [steps, columns] in words; rows a multiple of BAND, columns of WIDE, and steps of LANES where
 * there are tiles. */
INLINE void product_of_words(float *out, int64_t out_row, const word *x, int64_t x_row, int64_t x_step, const word *y, int64_t y_step,
                             int64_t steps, int64_t rows, int64_t columns, const int fresh) {
#if TILES
    (void)x_step; /* 1 */
    __asm__ volatile("" ::: "memory"); /* gcc does not know that a tile is read from memory */
    for (int64_t r = 0; r < rows; r += PANEL)
        for (int64_t c = 0; c < columns; c += PANEL)
            square(out + r * out_row + c, out_row, x + r * x_row, x_row, y + c, y_step, steps, fresh);
#else
    for (int64_t r = 0; r < rows; r += ROWS)
        product(out + r * out_row, out_row, x + r * x_row, x_row, x_step, y, y_step, steps, columns, PAIRS, fresh);
#endif
}

/* LANES words, each of a number of one row and the number below it. */
INLINE void join(word *out, v16 above, v16 below) {
#if PAIRS
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)above));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)below));
    _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
    (void)below;
    keep(out, above);
#endif
}

/* LANES numbers as LANES / STEP words, each of neighbors in the row. */
INLINE void narrow(word *out, v16 x) {
#if PAIRS
    keep_halves((uint16_t *)out, x);
#else
    keep(out, x);
#endif
}

/* rows [count, width] -> words [count / STEP, width], count a multiple of STEP, width of LANES. */
static inline void join_rows(word *restrict out, const float *restrict rows, int64_t count, int64_t width) {
    for (int64_t row = 0; row < count; row += STEP)
        for (int64_t c = 0; c < width; c += LANES)
            join(out + row / STEP * width + c, vector(rows + row * width + c), vector(rows + (row + STEP - 1) * width + c));
}

/* words x [rows, columns] -> out [columns, rows], both multiples of LANES. */
static void transpose(word *restrict out, int64_t out_row, const word *restrict x, int64_t x_row, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
#ifdef __AVX512F__
            const v16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            v16 block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) block[i] = vector(x + (r + i) * x_row + c);
#pragma GCC unroll 4
            for (int half = LANES / 2; half; half /= 2) { /* corners of (2 half)^2 blocks change places */
                v16i left = lane + (((lane & half) != 0) & (LANES - half)), right = left + half;
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++)
                    if (!(i & half)) {
                        __m512 above = (__m512)block[i], below = (__m512)block[i + half];
                        block[i] = (v16)_mm512_permutex2var_ps(above, (__m512i)left, below);
                        block[i + half] = (v16)_mm512_permutex2var_ps(above, (__m512i)right, below);
                    }
            }
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) keep(out + (c + i) * out_row + r, block[i]);
#else
            for (int i = 0; i < LANES; i++)
                for (int j = 0; j < LANES; j++) out[(c + i) * out_row + r + j] = x[(r + j) * x_row + c + i];
#endif
        }
}

/* `count` rows of a head in float32, and zeros below them up to `room` and to the right up to `wide`. */
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

/* Has `count` rows of a head brought near, to be read or written a little later. */
INLINE void fetch(const void *first, int64_t stride, int64_t count, int64_t bytes, const int written) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)first + row * stride + b, written, 2);
}

static inline float *take(float **room, int64_t count) {
    float *taken = *room;
    *room += UP(count, LANES);
    return taken;
}

#endif
