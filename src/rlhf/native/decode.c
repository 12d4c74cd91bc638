/* One decoding step of a Llama-shaped model, apart from its matrix products: what torch does in some forty small operations a layer.
 *
 * Compiled at run time by rlhf.native.library, once for each pair of
 *   WIDTH  numbers in a head, D
 *   BLOCK  tokens whose probabilities are added up before one of them is searched for
 *   HALF   1 where activations and prompts' tables are bfloat16, 0 where they are float32
 * All sums are in float32. A row's result hangs on no other row. All arrays are row-major, and distances between their parts are given.
 *
 * NaN comes through, and nothing here assumes that there is none: the caller finds it in the logits.
 */
#include "numbers.h"

#define UNROLL 4 /* independent sums, so that an addition need not wait for the one before */

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

LARGEST(largest_logit, element, load)

/* Draws a token for rows first .. last - 1: the first whose cumulative probability exceeds the row's uniform number.
 *   logits    [rows, vocabulary]
 *   uniform   [rows] in [0, 1)
 *   tokens    [rows] out
 *   logprobs  [rows] out, nats
 *   sums      [vocabulary / BLOCK + 1], memory to work in
 */
void draw(const element *logits, int64_t vocabulary, double inverse_temperature, const double *uniform, int64_t *tokens, double *logprobs,
          float *sums, int64_t first, int64_t last) {
    float factor = (float)inverse_temperature;
    int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
    for (int64_t row = first; row < last; row++) {
        const element *x = logits + row * vocabulary;
        float most = largest_logit(x, vocabulary) * factor;
        double total = 0;
        for (int64_t block = 0; block < blocks; block++) {
            int64_t end = (block + 1) * BLOCK < vocabulary ? (block + 1) * BLOCK : vocabulary;
            float sum = 0;
            for (int64_t i = block * BLOCK; i < end; i++) sum += exponential(load(x[i]) * factor - most);
            sums[block] = sum;
            total += sum;
        }
        double target = uniform[row] * total, before = 0;
        int64_t block = 0;
        while (block + 1 < blocks && before + sums[block] <= target) before += sums[block++];
        int64_t token = block * BLOCK, end = (block + 1) * BLOCK < vocabulary ? (block + 1) * BLOCK : vocabulary;
        for (int64_t i = block * BLOCK; i < end; i++) {
            float p = exponential(load(x[i]) * factor - most);
            before += p;
            if (p > 0) token = i; /* rounding may leave the target behind the last one */
            if (before > target) break;
        }
        tokens[row] = token;
        logprobs[row] = (double)(load(x[token]) * factor - most) - log(total);
    }
}

/* What stays the same for all layers of a step. */
typedef struct {
    int64_t rows, heads, kv_heads;
    int64_t place;             /* of the new token in the ring of a row's own tokens */
    int64_t room;              /* size of that ring */
    const int64_t *positions;  /* [rows] of the tokens being fed, for their rotation */
    const int64_t *before;     /* [rows] tokens that each row held before, those of its prompt included */
    const int64_t *row_lens;   /* [rows] tokens of each row's prompt */
    const int64_t *group;      /* [rows] place of that prompt in the tables */
    const float *rotations;    /* [positions, WIDTH / 2] complex */
} step_t;

/* One layer. Distances count elements. */
typedef struct {
    element *keys, *values;                        /* [rows, kv_heads, room, WIDTH] */
    const element *prompt_keys, *prompt_values;    /* [prompts, kv_heads, longest, WIDTH] */
    int64_t prompt_stride, prompt_head_stride;
    int64_t row_stride, row_head_stride;
    int64_t window;                                /* positions that a token sees, itself included; 0: all */
    const float *query_norm, *key_norm;            /* [WIDTH] weights of norms over each head, or null */
    float query_eps, key_eps;                      /* of those norms */
} layer_t;

/* A head's numbers, normed where the model does that, and turned by its position: neighbours are one complex number. */
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

static void attend_head(const step_t *step, const layer_t *layer, int64_t row, int64_t kv_head,
                        const float *restrict query, float *restrict scores, element *restrict out) {
    int64_t before = step->before[row], length = step->row_lens[row];
    int64_t first = 0; /* of the row's tokens, the first that is seen */
    if (layer->window && before + 1 - layer->window > first) first = before + 1 - layer->window;
    int64_t of_prompt = first < length ? length - first : 0;
    int64_t of_own = before + 1 - (first > length ? first : length);
    int64_t begin = step->place - (of_own - 1); /* the row's own tokens are a run of the ring, perhaps round its end */
    if (begin < 0) begin += step->room;
    int64_t until_end = of_own < step->room - begin ? of_own : step->room - begin;
    int64_t count = of_prompt + of_own;

    int64_t prompt_at = step->group[row] * layer->prompt_stride + kv_head * layer->prompt_head_stride + first * WIDTH;
    int64_t own_at = row * layer->row_stride + kv_head * layer->row_head_stride;
    dot(query, layer->prompt_keys + prompt_at, scores, of_prompt);
    dot(query, layer->keys + own_at + begin * WIDTH, scores + of_prompt, until_end);
    dot(query, layer->keys + own_at, scores + of_prompt + until_end, of_own - until_end);

    float most = largest_score(scores, count);
    float sum = 0;
    for (int64_t i = 0; i < count; i++) {
        scores[i] = exponential(scores[i] - most);
        sum += scores[i];
    }

    float mixed[WIDTH] = {0};
    mix(mixed, layer->prompt_values + prompt_at, scores, of_prompt);
    mix(mixed, layer->values + own_at + begin * WIDTH, scores + of_prompt, until_end);
    mix(mixed, layer->values + own_at, scores + of_prompt + until_end, of_own - until_end);
    for (int d = 0; d < WIDTH; d++) out[d] = store(mixed[d] / sum);
}

/* Writes the new keys and values of units first .. last - 1, and attends for them. A unit is a row of one key head; those of a head stand
 * together, so that rows of one prompt find its keys in the cache.
 *   qkv  [rows, (heads + 2 * kv_heads) * WIDTH]: queries, scaled; keys; values
 *   out  [rows, heads * WIDTH]
 *   scores  [longest prompt + room], memory to work in
 */
void attend(const step_t *step, const layer_t *layer, const element *qkv, element *out, float *scores, int64_t first, int64_t last) {
    int64_t heads = step->heads, kv_heads = step->kv_heads, repeats = heads / kv_heads;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t kv_head = unit / step->rows, row = unit % step->rows;
        const element *numbers = qkv + row * (heads + 2 * kv_heads) * WIDTH;
        const float *rotation = step->rotations + step->positions[row] * WIDTH;
        int64_t own = row * layer->row_stride + kv_head * layer->row_head_stride + step->place * WIDTH;
        float key[WIDTH];
        turned(numbers + (heads + kv_head) * WIDTH, key, rotation, layer->key_norm, layer->key_eps);
        for (int d = 0; d < WIDTH; d++) layer->keys[own + d] = store(key[d]);
        memcpy(layer->values + own, numbers + (heads + kv_heads + kv_head) * WIDTH, WIDTH * sizeof(element));
        for (int64_t head = kv_head * repeats; head < (kv_head + 1) * repeats; head++) {
            float query[WIDTH];
            turned(numbers + head * WIDTH, query, rotation, layer->query_norm, layer->query_eps);
            attend_head(step, layer, row, kv_head, query, scores, out + (row * heads + head) * WIDTH);
        }
    }
}
