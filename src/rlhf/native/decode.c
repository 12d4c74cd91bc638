/* One decoding step of a Llama-shaped model: what torch does in some forty small operations a layer.
 *
 * Compiled at run time by rlhf.native.library, once for each set of
 *   WIDTH  numbers in a head, D
 *   BLOCK  tokens whose probabilities are added up before one of them is searched for
 *   HALF   1 where activations and prompts' tables are bfloat16, 0 where they are float32
 *   TILES  0 to do without the processor's products of tiles of bfloat16 (AMX). With them a step is one call, `decode`; without, the
 *          caller makes the matrix products, and calls for what is between them
 * All sums are in float32. A row's result does not depend on other rows. All arrays are row-major, with explicit strides.
 *
 * NaN comes through, and nothing here assumes that there is none: the caller finds it in the log-probabilities.
 */
#ifndef TILES /* products.h asks for whole tiles of a head's width too: what is multiplied here are a layer's weights */
#if HALF && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TILES 1
#else
#define TILES 0
#endif
#endif
#if TILES
#define PAIRS 1
#include "linear.h"
#include <sched.h>
#else
#include "vectors.h"
#endif

#define PATIENCE 4000 /* looks at what another thread does, before this one lets others have the processor */
#define NEAR 16384    /* bytes that are asked for ahead of their time, of keys and as many of values */
#define UNROLL 4      /* independent sums, so that an addition need not wait for the one before */
#define VECTORS (WIDTH / LANES)

#if WIDTH % LANES == 0 && defined(__AVX512F__)
#define BY_VECTORS 1
#else
#define BY_VECTORS 0
#endif

#define SPLIT (BY_VECTORS && HALF && VECTORS % 2 == 0) /* pairs of vectors are made of the even and of the odd ones of 2 * LANES numbers */

/* out = x / sqrt(mean(x^2) + eps), each row [width] of x [rows, width]. */
static void norm_row(const float *restrict x, element *restrict out, int64_t width, float eps) {
    float square = 0;
    for (int64_t i = 0; i < width; i++) square += x[i] * x[i];
    float scale = 1.0f / sqrtf(square / (float)width + eps);
    for (int64_t i = 0; i < width; i++) out[i] = store(x[i] * scale);
}

void norm(const float *x, element *out, int64_t rows, int64_t width, float eps) {
    for (int64_t row = 0; row < rows; row++) norm_row(x + row * width, out + row * width, width, eps);
}

/* x += y, then as above. */
void add_norm(float *restrict x, const element *restrict y, element *restrict out, int64_t rows, int64_t width, float eps) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = row * width; i < (row + 1) * width; i++) x[i] += load(y[i]);
        norm_row(x + row * width, out + row * width, width, eps);
    }
}

/* out [rows, width] = silu(first half) * second half of x [rows, 2 * width]. */
void silu_product(const element *restrict x, element *restrict out, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const element *gate = x + row * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i++) {
            float g = load(gate[i]);
            out[row * width + i] = store(g / (1.0f + exponential(-g)) * load(up[i]));
        }
    }
}

/* Sum of e^(x * factor - most), where `most` is the largest of x * factor. */
static float powers(const element *x, int64_t count, float factor, float *most) {
    int64_t whole = count / LANES * LANES;
    v16 largest_yet = (v16){0} - INFINITY, sums = {0};
    for (int64_t i = 0; i < whole; i += LANES) largest_yet = larger(elements(x + i), largest_yet);
    float found = largest(largest_yet), sum = 0;
    for (int64_t i = whole; i < count; i++) found = load(x[i]) > found ? load(x[i]) : found;
    *most = found *= factor;
    if (found == -INFINITY) found = 0; /* nothing here can be drawn, or something is NaN, which is to come through */
    for (int64_t i = 0; i < whole; i += LANES) sums += exponentials(elements(x + i) * factor - found);
    for (int64_t i = whole; i < count; i++) sum += exponential(load(x[i]) * factor - found);
    return sum + total(sums);
}

/* Draws a token for rows first .. last - 1: the first whose cumulative probability exceeds the row's uniform number.
 *   logits    [rows, vocabulary]
 *   uniform   [rows] in [0, 1)
 *   tokens    [rows] out
 *   logprobs  [rows] out, nats
 *   sums      [2 * (vocabulary / BLOCK + 1)], memory to work in
 */
void draw(const element *logits, int64_t vocabulary, double inverse_temperature, const double *uniform, int64_t *tokens, double *logprobs,
          float *sums, int64_t first, int64_t last) {
    float factor = (float)inverse_temperature;
    int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
    float *mosts = sums + blocks;
    for (int64_t row = first; row < last; row++) {
        const element *x = logits + row * vocabulary;
        for (int64_t block = 0; block < blocks; block++) { /* each by its own largest, so that logits are read once */
            int64_t begin = block * BLOCK;
            sums[block] = powers(x + begin, LEAST(BLOCK, vocabulary - begin), factor, mosts + block);
        }
        float most = largest_score(mosts, blocks);
        double all = 0;
        for (int64_t block = 0; block < blocks; block++) {
            sums[block] *= exponential(mosts[block] - most);
            all += sums[block];
        }
        double target = uniform[row] * all, before = 0;
        int64_t block = 0;
        while (block + 1 < blocks && before + sums[block] <= target) before += sums[block++];
        int64_t token = block * BLOCK, end = LEAST((block + 1) * BLOCK, vocabulary);
        for (int64_t i = block * BLOCK; i < end; i++) {
            float p = exponential(load(x[i]) * factor - most);
            before += p;
            if (p > 0) token = i; /* rounding may leave the target behind the last one */
            if (before > target) break;
        }
        tokens[row] = token;
        logprobs[row] = (double)(load(x[token]) * factor - most) - log(all);
    }
}

/* What stays the same for all layers of a step. A row here is a token being fed; where several follow one another in one row of the
 * tables, `several` is set, and all their keys are written (`write_keys`) before any of them attends. */
typedef struct {
    int64_t rows;
    int64_t several;
    int64_t room;              /* size of the ring of a row's own tokens */
    const int64_t *places;     /* [rows] of the new tokens in that ring */
    const int64_t *own;        /* [rows] row of the tables */
    const int64_t *positions;  /* [rows] of the tokens being fed, for their rotation */
    const int64_t *before;     /* [rows] tokens that stand before each, those of its prompt included */
    const int64_t *row_lens;   /* [rows] tokens of each row's prompt */
    const int64_t *group;      /* [rows] place of that prompt in the tables */
    const float *rotations;    /* [positions, WIDTH / 2] complex */
} step_t;

/* One layer. Distances count elements. */
typedef struct {
    int64_t heads, kv_heads;
    element *keys, *values;                        /* [rows, kv_heads, room, WIDTH] */
    const element *prompt_keys, *prompt_values;    /* [prompts, kv_heads, longest, WIDTH] */
    int64_t prompt_stride, prompt_head_stride;
    int64_t row_stride, row_head_stride;
    int64_t window;                                /* positions that a token sees, itself included; 0: all */
    const float *query_norm, *key_norm;            /* [WIDTH] weights of norms over each head, or null */
    float query_eps, key_eps;                      /* of those norms */
} layer_t;

/* A head's numbers, normed where the model does that, and turned by its position: neighbors are one complex number. */
static inline void turned(const element *restrict x, float *restrict out, const float *restrict rotation, const float *weight, float eps) {
    float y[WIDTH];
    for (int d = 0; d < WIDTH; d++) y[d] = load(x[d]);
    if (weight) {
        float square = 0;
        for (int d = 0; d < WIDTH; d++) square += y[d] * y[d];
        float scale = 1.0f / sqrtf(square / WIDTH + eps);
        for (int d = 0; d < WIDTH; d++) y[d] *= scale * weight[d];
    }
    for (int d = 0; d < WIDTH; d += 2) {
        float c = rotation[d], s = rotation[d + 1];
        out[d] = y[d] * c - y[d + 1] * s;
        out[d + 1] = y[d] * s + y[d + 1] * c;
    }
}

#if BY_VECTORS
/* Lane i: the sum of x[i]. */
INLINE v16 sums_of(const v16 x[LANES]) {
    __m512 y[LANES / 2], z[LANES / 4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* quarters of two vectors and of the two four behind, until each has one: lanes 0, 4, 8 and 12 to come */
        __m512 a = (__m512)x[i % 4 + i / 4 * 8], b = (__m512)x[i % 4 + i / 4 * 8 + 4];
        y[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        z[i] = _mm512_add_ps(_mm512_shuffle_f32x4(y[i], y[i + 4], 0x88), _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd));
    __m512 even = _mm512_add_ps(_mm512_unpacklo_ps(z[0], z[2]), _mm512_unpackhi_ps(z[0], z[2]));
    __m512 odd = _mm512_add_ps(_mm512_unpacklo_ps(z[1], z[3]), _mm512_unpackhi_ps(z[1], z[3]));
    return (v16)_mm512_add_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
}

/* Vector v of a head's numbers. */
INLINE v16 part(const element *x, int v) {
#if SPLIT
    v16u both;
    memcpy(&both, x + v / 2 * 2 * LANES, sizeof both);
    return (v16)(v % 2 ? both & 0xffff0000 : both << 16);
#else
    return elements(x + v * LANES);
#endif
}

/* scores[i] = query . keys[i]; entries after them, up to a multiple of LANES, are overwritten. */
static void dot(const float *restrict query, const element *restrict keys, float *restrict scores, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
        v16 sums[LANES];
        int64_t here = LEAST(LANES, count - i);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            const element *key = keys + (i + LEAST(j, here - 1)) * WIDTH;
            sums[j] = vector(query) * part(key, 0);
            for (int v = 1; v < VECTORS; v++) sums[j] += vector(query + v * LANES) * part(key, v);
        }
        keep(scores + i, sums_of(sums));
    }
}

/* out += sum of probs[i] * values[i] */
static void mix(float *restrict out, const element *restrict values, const float *restrict probs, int64_t count) {
    v16 sums[UNROLL][VECTORS] = {{{0}}};
    int64_t i = 0;
    for (; i + UNROLL <= count; i += UNROLL)
#pragma GCC unroll 4
        for (int u = 0; u < UNROLL; u++)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++) sums[u][v] += probs[i + u] * part(values + (i + u) * WIDTH, v);
    for (; i < count; i++)
        for (int v = 0; v < VECTORS; v++) sums[0][v] += probs[i] * part(values + i * WIDTH, v);
    for (int v = 0; v < VECTORS; v++) keep(out + v * LANES, vector(out + v * LANES) + ((sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v])));
}
#else
/* scores[i] = query . keys[i] */
static void dot(const float *restrict query, const element *restrict keys, float *restrict scores, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int d = 0; d < WIDTH; d++) sum += query[d] * load(keys[i * WIDTH + d]);
        scores[i] = sum;
    }
}

/* out += sum of probs[i] * values[i] */
static void mix(float *restrict out, const element *restrict values, const float *restrict probs, int64_t count) {
    float sums[UNROLL][WIDTH] = {{0}};
    int64_t i = 0;
    for (; i + UNROLL <= count; i += UNROLL)
        for (int u = 0; u < UNROLL; u++)
            for (int d = 0; d < WIDTH; d++) sums[u][d] += probs[i + u] * load(values[(i + u) * WIDTH + d]);
    for (; i < count; i++)
        for (int d = 0; d < WIDTH; d++) sums[0][d] += probs[i] * load(values[i * WIDTH + d]);
    for (int u = 0; u < UNROLL; u++)
        for (int d = 0; d < WIDTH; d++) out[d] += sums[u][d];
}
#endif

/* Position of number d of a query, and of its attention output. */
INLINE int placed(int d) { return SPLIT ? d / (2 * LANES) * 2 * LANES + d % 2 * LANES + d % (2 * LANES) / 2 : d; }

/* What a row's new token sees, in one key head. */
typedef struct {
    int64_t of_prompt, prompt_at;         /* tokens of the prompt, and the position of the first */
    int64_t of_own, own_at, begin;        /* of the row's own: a run of the ring, perhaps round its end */
    int64_t until_end;
} view_t;

static view_t view_of(const step_t *step, const layer_t *layer, int64_t row, int64_t kv_head) {
    int64_t before = step->before[row], length = step->row_lens[row];
    int64_t first = 0; /* of the row's tokens, the first that is seen */
    if (layer->window && before + 1 - layer->window > first) first = before + 1 - layer->window;
    view_t view;
    view.of_prompt = first < length ? length - first : 0;
    view.prompt_at = step->group[row] * layer->prompt_stride + kv_head * layer->prompt_head_stride + first * WIDTH;
    view.of_own = before + 1 - MOST(first, length);
    view.own_at = step->own[row] * layer->row_stride + kv_head * layer->row_head_stride;
    view.begin = step->places[row] - (view.of_own - 1);
    if (view.begin < 0) view.begin += step->room;
    view.until_end = LEAST(view.of_own, step->room - view.begin);
    return view;
}

/* Has a row's own keys and values brought near: where there are many, the first, as the processor foresees the others. */
static void bring_near(const layer_t *layer, view_t view) {
    const int64_t at = view.own_at + view.begin * WIDTH, count = LEAST(view.until_end * WIDTH, NEAR / (int64_t)sizeof(element));
    for (int64_t i = 0; i < count; i += 64 / sizeof(element)) __builtin_prefetch(layer->keys + at + i);
    for (int64_t i = 0; i < count; i += 64 / sizeof(element)) __builtin_prefetch(layer->values + at + i);
}

static void attend_head(const layer_t *layer, const view_t *view, const float *restrict query, float *restrict scores, element *restrict out) {
    const int64_t of_prompt = view->of_prompt, until_end = view->until_end, of_own = view->of_own, count = of_prompt + of_own;
    const int64_t begin = view->own_at + view->begin * WIDTH;
    dot(query, layer->prompt_keys + view->prompt_at, scores, of_prompt);
    dot(query, layer->keys + begin, scores + of_prompt, until_end);
    dot(query, layer->keys + view->own_at, scores + of_prompt + until_end, of_own - until_end);

    for (int64_t i = count; i < UP(count, LANES); i++) scores[i] = -INFINITY;
    float most = largest_score(scores, count);
    v16 sums = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        v16 power = exponentials(vector(scores + i) - most);
        keep(scores + i, power);
        sums += power;
    }
    float sum = total(sums);

    float mixed[WIDTH] = {0};
    mix(mixed, layer->prompt_values + view->prompt_at, scores, of_prompt);
    mix(mixed, layer->values + begin, scores + of_prompt, until_end);
    mix(mixed, layer->values + view->own_at, scores + of_prompt + until_end, of_own - until_end);
    for (int d = 0; d < WIDTH; d++) out[d] = store(mixed[placed(d)] / sum);
}

/* Writes a row's new key and value of one key head. */
static void write_key(const step_t *step, const layer_t *layer, const element *qkv, int64_t row, int64_t kv_head) {
    const element *numbers = qkv + row * (layer->heads + 2 * layer->kv_heads) * WIDTH;
    int64_t at = step->own[row] * layer->row_stride + kv_head * layer->row_head_stride + step->places[row] * WIDTH;
    float y[WIDTH];
    turned(numbers + (layer->heads + kv_head) * WIDTH, y, step->rotations + step->positions[row] * WIDTH, layer->key_norm, layer->key_eps);
    for (int d = 0; d < WIDTH; d++) layer->keys[at + d] = store(y[d]);
    memcpy(layer->values + at, numbers + (layer->heads + layer->kv_heads + kv_head) * WIDTH, WIDTH * sizeof(element));
}

/* Those of units first .. last - 1, as `attend` counts them. */
void write_keys(const step_t *step, const layer_t *layer, const element *qkv, int64_t first, int64_t last) {
    for (int64_t unit = first; unit < last; unit++) write_key(step, layer, qkv, unit % step->rows, unit / step->rows);
}

/* Attention of units first .. last - 1, whose new keys and values are written before, unless `write_keys` has done that. A unit is a row
 * of one key head; those of a head are adjacent, so that rows of one prompt find its keys in the cache.
 *   qkv  [rows, (heads + 2 * kv_heads) * WIDTH]: queries, scaled; keys; values
 *   out  [rows, heads * WIDTH]
 *   scores  [longest prompt + room + LANES], memory to work in
 */
void attend(const step_t *step, const layer_t *layer, const element *qkv, element *out, float *scores, int64_t first, int64_t last) {
    int64_t heads = layer->heads, kv_heads = layer->kv_heads, repeats = heads / kv_heads;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t kv_head = unit / step->rows, row = unit % step->rows;
        if (unit + 1 < last) bring_near(layer, view_of(step, layer, (unit + 1) % step->rows, (unit + 1) / step->rows));
        view_t view = view_of(step, layer, row, kv_head);
        const element *numbers = qkv + row * (heads + 2 * kv_heads) * WIDTH;
        const float *rotation = step->rotations + step->positions[row] * WIDTH;
        if (!step->several) write_key(step, layer, qkv, row, kv_head);
        for (int64_t head = kv_head * repeats; head < (kv_head + 1) * repeats; head++) {
            float query[WIDTH], y[WIDTH];
            turned(numbers + head * WIDTH, y, rotation, layer->query_norm, layer->query_eps);
            for (int d = 0; d < WIDTH; d++) query[placed(d)] = y[d];
            attend_head(layer, &view, query, scores, out + (row * heads + head) * WIDTH);
        }
    }
}

#if TILES
/* ---- a whole step */

/* A layer's products and norms. */
typedef struct {
    linear_t qkv, out, gate_up, down;
    float attention_eps, mlp_eps;
} weights_t;

typedef struct {
    int64_t layers, width, threads;
    float *x;                          /* [rows, width] of the tokens' embeddings, then of what the last layer gives */
    element *normed, *change;          /* [rows, width] */
    element *qkv, *seen, *gates, *act; /* what goes into attention, what comes out, and the same of gates; [rows, ...] */
    int arrived, phase;                /* of threads that wait for each other; 0 at first */
    int abandoned;                     /* set if one of them will not arrive: the others' results are discarded */
} pass_t;

/* Waits for the other threads. */
static void meet(pass_t *pass) {
    if (pass->threads == 1) return;
    int phase = __atomic_load_n(&pass->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&pass->arrived, 1, __ATOMIC_ACQ_REL) == pass->threads) {
        __atomic_store_n(&pass->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&pass->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t turn = 0; __atomic_load_n(&pass->phase, __ATOMIC_ACQUIRE) == phase; turn++) {
        if (__atomic_load_n(&pass->abandoned, __ATOMIC_RELAXED)) return;
        if (turn < PATIENCE) _mm_pause();
        else sched_yield();
    }
}

/* One thread's share of all layers; every thread of the pass comes here. `memory` is its own: the longer of `attend`'s and `linear`'s. */
void decode(pass_t *pass, const step_t *step, const layer_t *layers, const weights_t *weights, float *memory, int64_t thread) {
    const int64_t rows = step->rows, width = pass->width, threads = pass->threads;
    const int64_t begin = rows * thread / threads, end = rows * (thread + 1) / threads; /* rows of this thread, where they are apart */
#define SHARE(count) (count) * thread / threads, (count) * (thread + 1) / threads
#define TIMES(map, x, y) linear(&w->map, x, y, rows, (element *)memory, SHARE(panels(&w->map))), meet(pass)
#define MINE(x, size) ((x) + begin * (size))
    norm(MINE(pass->x, width), MINE(pass->normed, width), end - begin, width, weights->attention_eps);
    meet(pass);
    for (int64_t layer = 0; layer < pass->layers; layer++) {
        const weights_t *w = weights + layer;
        const int64_t inner = w->down.in;
        TIMES(qkv, pass->normed, pass->qkv);
        if (step->several) write_keys(step, layers + layer, pass->qkv, SHARE(rows * layers[layer].kv_heads)), meet(pass);
        attend(step, layers + layer, pass->qkv, pass->seen, memory, SHARE(rows * layers[layer].kv_heads));
        meet(pass);
        TIMES(out, pass->seen, pass->change);
        add_norm(MINE(pass->x, width), MINE(pass->change, width), MINE(pass->normed, width), end - begin, width, w->mlp_eps);
        meet(pass);
        TIMES(gate_up, pass->normed, pass->gates);
        silu_product(MINE(pass->gates, 2 * inner), MINE(pass->act, inner), end - begin, inner);
        meet(pass);
        TIMES(down, pass->act, pass->change);
        float eps = layer + 1 < pass->layers ? w[1].attention_eps : 1; /* after the last layer the norm is not used */
        add_norm(MINE(pass->x, width), MINE(pass->change, width), MINE(pass->normed, width), end - begin, width, eps);
        meet(pass);
    }
}
#endif

/* Whether a step is one call here: the processor has tiles, and the system lets this process have them. */
int is_whole(void) {
#if TILES
    return tiles_allowed();
#else
    return 0;
#endif
}
