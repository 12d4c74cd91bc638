/* y = x W^T + b in bfloat16, for few rows of x and a weight that is laid out once: products of tiles (AMX).
 *
 * A weight is read once from memory, from front to back, whatever the number of rows; all sums are in float32, and a row's do not depend on
 * other rows. Included only with TILES.
 */
#ifndef LINEAR_H
#define LINEAR_H

#include "products.h"

#define DEEP (LANES * STEP) /* numbers along the sum in a tile */
#define TILE (LANES * LANES)

/* weight [out, in], in even and at least DEEP -> [out / LANES, in / DEEP] tiles, both rounded up, in pairs: of the tiles of PANEL rows
 * those that are multiplied by the same numbers are adjacent. Entries after `out` are 0. The last tile along the sum begins DEEP before
 * its end, and is 0 where the one before it has been. */
void lay_weight(const element *weight, int64_t out, int64_t in, word *laid) {
    for (int64_t panel = 0; panel < out; panel += PANEL)
        for (int64_t i = 0; i < in; i += DEEP)
            for (int64_t row = panel; row < LEAST(panel + PANEL, UP(out, LANES)); row += LANES, laid += TILE) {
                word rows[TILE] ALIGNED;
                int64_t begin = LEAST(i, in - DEEP), again = i - begin;
                memset(rows, 0, sizeof rows);
                for (int64_t r = row; r < LEAST(row + LANES, out); r++)
                    memcpy((element *)(rows + (r - row) * LANES) + again, weight + r * in + i, (DEEP - again) * sizeof(element));
                transpose(laid, LANES, rows, LANES, LANES, LANES);
            }
}

typedef struct {
    const word *weight; /* laid out as above */
    const float *bias;  /* [out], or null */
    int64_t in, out;
} linear_t;

int64_t panels(const linear_t *map) { return UP(map->out, PANEL) / PANEL; }

/* Up to two tiles of rows by up to two of columns: sums [PANEL, PANEL] = x [LANES * high, in] weight. */
INLINE void corner(float *sums, const element *x, int64_t in, const word *weight, int64_t ahead, int first, const int high, const int wide) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < in; i += DEEP, weight += wide * TILE) {
        const element *numbers = x + LEAST(i, in - DEEP);
        if (first) for (int64_t j = 0; j < wide * TILE; j += LANES) __builtin_prefetch(weight + ahead + j);
        _tile_loadd(6, weight, 64);
        if (wide > 1) _tile_loadd(7, weight + TILE, 64);
        _tile_loadd(4, numbers, in * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (wide > 1) _tile_dpbf16ps(1, 4, 7);
        if (high > 1) _tile_loadd(5, numbers + LANES * in, in * 2);
        if (high > 1) _tile_dpbf16ps(2, 5, 6);
        if (high > 1 && wide > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, PANEL * 4);
    if (wide > 1) _tile_stored(1, sums + LANES, PANEL * 4);
    if (high > 1) _tile_stored(2, sums + LANES * PANEL, PANEL * 4);
    if (high > 1 && wide > 1) _tile_stored(3, sums + LANES * PANEL + LANES, PANEL * 4);
}

/* Numbers and bias as elements, up to PANEL of them. */
INLINE void put(element *out, const float *sums, const float *bias, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) keep_halves(out + i, bias ? vector(sums + i) + vector(bias + i) : vector(sums + i));
    for (; i < count; i++) out[i] = store(bias ? sums[i] + bias[i] : sums[i]);
}

/* y [rows, out] of x [rows, in]: panels first .. last - 1, of PANEL columns each. `last_rows` [LANES, in] is memory to work in. */
void linear(const linear_t *map, const element *x, element *y, int64_t rows, element *last_rows, int64_t first, int64_t last) {
    const int64_t in = map->in, out = map->out, whole = rows / LANES * LANES;
    const int64_t full = UP(in, DEEP) / DEEP * 2 * TILE; /* words of a panel, but for the last */
    memcpy(last_rows, x + whole * in, (rows - whole) * in * sizeof(element)); /* the rows below them are not used */
    begin_tiles();
    for (int64_t panel = first; panel < last; panel++) {
        const int64_t column = panel * PANEL, columns = LEAST(PANEL, out - column);
        const word *weight = map->weight + panel * full;
        const float *bias = map->bias ? map->bias + column : NULL;
        for (int64_t row = 0; row < rows;) {
            const int high = row + PANEL <= whole ? 2 : 1, wide = columns > LANES ? 2 : 1;
            const element *numbers = row < whole ? x + row * in : last_rows;
            float sums[PANEL * PANEL] ALIGNED;
            __asm__ volatile("" ::: "memory"); /* gcc does not know that a tile is read from memory, and written to it */
            if (high > 1 && wide > 1) corner(sums, numbers, in, weight, full, row == 0, 2, 2);
            else if (high > 1) corner(sums, numbers, in, weight, full, row == 0, 2, 1);
            else if (wide > 1) corner(sums, numbers, in, weight, full, row == 0, 1, 2);
            else corner(sums, numbers, in, weight, full, row == 0, 1, 1);
            __asm__ volatile("" ::: "memory");
            const int64_t end = LEAST(rows, row + high * LANES);
            for (const float *from = sums; row < end; row++, from += PANEL) put(y + row * out + column, from, bias, columns);
        }
    }
    end_tiles();
}

#endif
