/* Row-wise operations of a layer, forward and backward: norms, rotations, gates.
 *
 *     norm:      r = 1 / sqrt(mean(x^2) + eps),  y = w x r
 *                dx = r (w dy - x r^2 mean(w dy x)),  dw = sum over rows of dy x r
 *     rotation:  y = (x1 cos1 - x2 sin1, x2 cos2 + x1 sin2), where x1 and x2 are the halves of a head
 *                dx = (dy1 cos1 + dy2 sin2, dy2 cos2 - dy1 sin1)
 *     gate:      y = g s u with s = 1 / (1 + e^-g)
 *                du = dy g s,  dg = dy u (s + g s (1 - s))
 *
 * Sources: Zhang and Sennrich 2019, eq. 4, arXiv:1910.07467; Su et al. 2021, eq. 34, arXiv:2104.09864, for pairs that are half a head
 * apart; Shazeer 2020, eq. 6, arXiv:2002.05202.
 *
 * Compiled at run time by rlhf.native.library with HALF = 1. A function's name ends in the types of what it reads and what it writes: f for
 * float32, h for bfloat16. Everything between is float32 and rounded once. Work is split into pieces that do not depend on the number of threads.
 *
 * NaN comes through.
 */
#include "vectors.h"

#define BLOCK 32   /* rows in a piece */
#define PIECE 4096 /* numbers of a gate in a piece */

int64_t block(void) { return BLOCK; }
int64_t piece(void) { return PIECE; }

/* All arrays are row-major. */
typedef struct {
    int64_t rows, width;
    float eps;
    const void *x;      /* [rows, width] */
    const float *w;     /* [width] */
    float *inverse;     /* [rows] r */
    void *y;            /* [rows, width] */
    const void *grad_y; /* [rows, width] */
    void *grad_x;       /* [rows, width] */
    float *grad_w;      /* [pieces, width] */
} norm_t;

#define NORM(suffix, in, get_in, put_in, out, get_out, put_out)                                                                \
    void norm_forward_##suffix(const norm_t *norm, int64_t first, int64_t last) {                                              \
        const int64_t width = norm->width, end = LEAST(last * BLOCK, norm->rows);                                              \
        const float *restrict w = norm->w;                                                                                     \
        for (int64_t row = first * BLOCK; row < end; row++) {                                                                  \
            const in *restrict x = (const in *)norm->x + row * width;                                                          \
            out *restrict y = (out *)norm->y + row * width;                                                                    \
            float squares = 0;                                                                                                 \
            for (int64_t d = 0; d < width; d++) squares += get_in(x[d]) * get_in(x[d]);                                        \
            float r = norm->inverse[row] = 1 / sqrtf(squares / width + norm->eps);                                             \
            for (int64_t d = 0; d < width; d++) y[d] = put_out(w[d] * (get_in(x[d]) * r));                                     \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    void norm_backward_##suffix(const norm_t *norm, int64_t first, int64_t last) {                                             \
        const int64_t width = norm->width, end = LEAST(last * BLOCK, norm->rows);                                              \
        const float *restrict w = norm->w;                                                                                     \
        for (int64_t row = first * BLOCK; row < end; row++) {                                                                  \
            const in *restrict x = (const in *)norm->x + row * width;                                                          \
            const out *restrict dy = (const out *)norm->grad_y + row * width;                                                  \
            in *restrict dx = (in *)norm->grad_x + row * width;                                                                \
            float *restrict dw = norm->grad_w + row / BLOCK * width;                                                           \
            float r = norm->inverse[row], dot = 0;                                                                             \
            if (row % BLOCK == 0) memset(dw, 0, sizeof(float) * width);                                                        \
            for (int64_t d = 0; d < width; d++) dot += get_out(dy[d]) * w[d] * get_in(x[d]);                                   \
            float shift = dot / width * r * r;                                                                                 \
            for (int64_t d = 0; d < width; d++) {                                                                              \
                float number = get_in(x[d]), grad = get_out(dy[d]);                                                            \
                dx[d] = put_in(r * (w[d] * grad - number * shift));                                                            \
                dw[d] += grad * (number * r);                                                                                  \
            }                                                                                                                  \
        }                                                                                                                      \
    }

/* The gradient by w of all pieces, in their order. */
void norm_weight(const norm_t *norm, float *restrict total) {
    for (int64_t d = 0; d < norm->width; d++) total[d] = 0;
    for (int64_t at = 0; at * BLOCK < norm->rows; at++)
        for (int64_t d = 0; d < norm->width; d++) total[d] += norm->grad_w[at * norm->width + d];
}

typedef struct {
    int64_t rows, heads, width;
    int64_t angles;         /* rows of cos and sin; row n of x takes row n % angles */
    int64_t back;           /* 1: from dy to dx */
    const float *cos, *sin; /* [angles, width] */
    const void *x;          /* [rows, heads, width] */
    void *y;                /* [rows, heads, width] */
} rotation_t;

#define ROTATE(suffix, in, get, out, put)                                                                                      \
    void rotate_##suffix(const rotation_t *turn, int64_t first, int64_t last) {                                                \
        const int64_t width = turn->width, half = width / 2, end = LEAST(last * BLOCK, turn->rows);                            \
        for (int64_t row = first * BLOCK; row < end; row++) {                                                                  \
            const float *restrict cos1 = turn->cos + row % turn->angles * width, *restrict cos2 = cos1 + half;                 \
            const float *restrict sin1 = turn->sin + row % turn->angles * width, *restrict sin2 = sin1 + half;                 \
            const float *restrict low = turn->back ? sin2 : sin1, *restrict high = turn->back ? sin1 : sin2;                   \
            const float sign = turn->back ? -1 : 1;                                                                            \
            for (int64_t head = row * turn->heads; head < (row + 1) * turn->heads; head++) {                                   \
                const in *restrict x1 = (const in *)turn->x + head * width, *restrict x2 = x1 + half;                          \
                out *restrict y1 = (out *)turn->y + head * width, *restrict y2 = y1 + half;                                    \
                for (int64_t d = 0; d < half; d++) y1[d] = put(get(x1[d]) * cos1[d] - sign * get(x2[d]) * low[d]);             \
                for (int64_t d = 0; d < half; d++) y2[d] = put(get(x2[d]) * cos2[d] + sign * get(x1[d]) * high[d]);            \
            }                                                                                                                  \
        }                                                                                                                      \
    }

/* ---- gates: LANES numbers at a time */

#define load_f vector
#define store_f keep
#define load_h vector_of_halves
#define store_h keep_halves

/* 1 / (1 + e^-g) within 4e-7 of its size; that of 80 and -80 beyond them. */
INLINE v16 sigmoid(v16 g) {
    const v16 most = (v16){0} + 80;
    v16 sum = 1 + exponentials(-chosen(g > most, most, chosen(g < -most, -most, g)));
#ifdef __AVX512F__
    v16 near = (v16)_mm512_rcp14_ps((__m512)sum);
    return near * (2 - sum * near); /* Newton's step */
#else
    return 1 / sum;
#endif
}

typedef struct {
    int64_t count;
    const void *gate, *up;
    void *out;
    const void *grad_out;
    void *grad_gate, *grad_up;
} gate_t;

#define GATE(suffix, type)                                                                                                     \
    INLINE void gate_##suffix(const type *gate, const type *up, type *out) {                                                   \
        v16 g = load_##suffix(gate);                                                                                           \
        store_##suffix(out, g * sigmoid(g) * load_##suffix(up));                                                               \
    }                                                                                                                          \
                                                                                                                               \
    INLINE void gate_back_##suffix(const type *gate, const type *up, const type *grad, type *grad_gate, type *grad_up) {       \
        v16 g = load_##suffix(gate), s = sigmoid(g), dy = load_##suffix(grad);                                                 \
        store_##suffix(grad_up, dy * (g * s));                                                                                 \
        store_##suffix(grad_gate, dy * load_##suffix(up) * (s + g * s * (1 - s)));                                             \
    }                                                                                                                          \
                                                                                                                               \
    void gate_forward_##suffix(const gate_t *all, int64_t first, int64_t last) {                                               \
        const type *gate = all->gate, *up = all->up;                                                                           \
        type *out = all->out;                                                                                                  \
        int64_t end = LEAST(last * PIECE, all->count), i = first * PIECE;                                                      \
        for (; i + LANES <= end; i += LANES) gate_##suffix(gate + i, up + i, out + i);                                         \
        if (i < end) {                                                                                                         \
            type some[3][LANES] = {0};                                                                                         \
            const size_t size = sizeof(type) * (end - i);                                                                      \
            memcpy(some[0], gate + i, size), memcpy(some[1], up + i, size);                                                    \
            gate_##suffix(some[0], some[1], some[2]);                                                                          \
            memcpy(out + i, some[2], size);                                                                                    \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    void gate_backward_##suffix(const gate_t *all, int64_t first, int64_t last) {                                              \
        const type *gate = all->gate, *up = all->up, *grad = all->grad_out;                                                    \
        type *grad_gate = all->grad_gate, *grad_up = all->grad_up;                                                             \
        int64_t end = LEAST(last * PIECE, all->count), i = first * PIECE;                                                      \
        for (; i + LANES <= end; i += LANES) gate_back_##suffix(gate + i, up + i, grad + i, grad_gate + i, grad_up + i);       \
        if (i < end) {                                                                                                         \
            type some[5][LANES] = {0};                                                                                         \
            const size_t size = sizeof(type) * (end - i);                                                                      \
            memcpy(some[0], gate + i, size), memcpy(some[1], up + i, size), memcpy(some[2], grad + i, size);                   \
            gate_back_##suffix(some[0], some[1], some[2], some[3], some[4]);                                                   \
            memcpy(grad_gate + i, some[3], size), memcpy(grad_up + i, some[4], size);                                          \
        }                                                                                                                      \
    }

NORM(ff, float, itself, itself, float, itself, itself)
NORM(hf, element, load, store, float, itself, itself)
NORM(hh, element, load, store, element, load, store)
ROTATE(ff, float, itself, float, itself)
ROTATE(fh, float, itself, element, store)
ROTATE(hf, element, load, float, itself)
ROTATE(hh, element, load, element, store)
GATE(f, float)
GATE(h, element)
