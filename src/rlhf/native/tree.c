/* Attention over the trees of a packed batch, forward and backward: a prefix sees itself, a branch sees its prefix and itself.
 *
 *     S = scaling Q K^T,  P = softmax(S + mask),  O = P V
 *     dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(dO * O)),  dQ = scaling dS K,  dK = scaling dS^T Q
 *
 * Only O and the logarithm of each softmax's sum are kept; the backward pass makes P again (Dao et al. 2022, arXiv:2205.14135).
 *
 * Compiled at run time by rlhf.native.library, once for each set of
 *   WIDTH        numbers in a head of queries and keys
 *   VALUE_WIDTH  and of values
 *   HALF         1 where values, outputs and their gradients are bfloat16, 0 where they are float32
 *   PAIRS        0 to do without the processor's products of bfloat16
 *   TILES        0 to do without its products of tiles of bfloat16
 *
 * S and its softmax are in float32. Where the processor multiplies bfloat16, the factors of the other products are rounded to it. All sums
 * are in float32, and their order depends only on the lengths. Gradients by keys are computed in columns.
 *
 * NaN comes through. Keys that no query of a piece may see cost nothing.
 */
#include "products.h"

#define KEYS 64    /* whose gradients are summed up at a time */
#define QUERIES 64 /* added to those sums at a time */
#define BLOCK (LANES * STEP) /* LANES words */
#define ROOM UP(WIDTH, LANES)
#define VALUE_ROOM UP(VALUE_WIDTH, BLOCK)

/* Consecutive rows of the batch. */
typedef struct {
    int64_t first, length;
} run_t;

/* All arrays are row-major. */
typedef struct {
    int64_t heads, kv_heads;
    int64_t window;          /* positions that a query sees, itself included; 0: all */
    int64_t chunk;           /* a query sees its own chunk of so many positions; 0: all */
    int64_t known;           /* 1: a prefix that has branches has no queries, in `forward` alone */
    float scaling;
    const run_t *runs;       /* each tree's prefix, then its branches */
    const int64_t *trees;    /* [trees + 1] where a tree's runs begin */
    const float *query;      /* [N, heads, WIDTH] */
    const float *key;        /* [N, kv_heads, WIDTH] */
    const element *value;    /* [N, kv_heads, VALUE_WIDTH] */
    element *out;            /* [N, heads, VALUE_WIDTH] */
    float *log_sums;         /* [N, heads] */
    const element *grad_out; /* [N, heads, VALUE_WIDTH] */
    float *grad_query, *grad_key, *grad_value;
} batch_t;

/* First position that the query at a position sees. */
INLINE int64_t lowest(const batch_t *batch, int64_t position) {
    int64_t low = 0;
    if (batch->window) low = MOST(low, position - batch->window + 1);
    if (batch->chunk) low = MOST(low, position / batch->chunk * batch->chunk);
    return low;
}

/* First position behind all of those whose queries see something before the position `end`. */
INLINE int64_t last_reader(const batch_t *batch, int64_t end) {
    int64_t last = INT64_MAX;
    if (batch->window) last = LEAST(last, end + batch->window - 1);
    if (batch->chunk) last = LEAST(last, UP(end, batch->chunk));
    return last;
}

/* -infinity where row r of a piece, at position + r, must not see key k of those that begin at position `start` and are `count`. */
INLINE void hide(const batch_t *batch, float *scores, int64_t row, int64_t columns, int64_t position, int64_t start, int64_t count) {
    int32_t shared_low = (int32_t)(lowest(batch, position + ROWS - 1) - start), shared_high = (int32_t)LEAST(position + 1 - start, count);
    if (shared_low <= 0 && shared_high >= columns) return;
    for (int r = 0; r < ROWS; r++) {
        int32_t low = (int32_t)(lowest(batch, position + r) - start), high = (int32_t)LEAST(position + r + 1 - start, count);
        for (int32_t k = 0; k < columns; k++) scores[r * row + k] = (k >= low) & (k < high) ? scores[r * row + k] : -INFINITY;
    }
}

/* ---- forward */

/* Keys at and after a position, and where they were laid out. */
typedef struct {
    int64_t start, length, at;
} segment_t;

typedef struct {
    int64_t room;   /* keys */
    float *keys;    /* panels [ROOM, PANEL], scaled */
    word *values;   /* [room / STEP, VALUE_ROOM] */
    float *queries; /* [ROWS, ROOM] */
    float *scores;  /* [ROWS, room] */
    word *probs;    /* [BAND, room / STEP] */
} forward_t;

/* Layout of a tree's scratch memory, and its size in floats. */
static int64_t lay_forward(const run_t *runs, int64_t count, float *memory, forward_t *at) {
    int64_t longest = 0;
    for (int64_t run = 1; run < count; run++) longest = MOST(longest, runs[run].length);
    float *room = memory;
    at->room = UP(runs[0].length, PANEL) + UP(longest, PANEL);
    at->keys = take(&room, at->room * ROOM);
    at->values = take(&room, at->room / STEP * VALUE_ROOM);
    at->queries = take(&room, ROWS * ROOM);
    at->scores = take(&room, ROWS * at->room);
    at->probs = STEP > 1 ? take(&room, BAND * at->room / STEP) : at->scores;
    return room - memory;
}

static void lay_keys(const batch_t *batch, const forward_t *at, run_t run, int64_t kv_head, int64_t place) {
    ALIGNED float rows[PANEL * MOST(ROOM, VALUE_ROOM)];
    for (int64_t k = 0; k < run.length; k += PANEL) {
        int64_t head = (run.first + k) * batch->kv_heads + kv_head, count = LEAST(PANEL, run.length - k);
        rows_of_floats(rows, batch->key + head * WIDTH, batch->kv_heads * WIDTH, count, PANEL, WIDTH, ROOM, batch->scaling);
        transpose(at->keys + (place + k) * ROOM, PANEL, rows, ROOM, PANEL, ROOM);
        rows_of_elements(rows, batch->value + head * VALUE_WIDTH, batch->kv_heads * VALUE_WIDTH, count, PANEL, VALUE_WIDTH, VALUE_ROOM, 1);
        join_rows(at->values + (place + k) / STEP * VALUE_ROOM, rows, PANEL, VALUE_ROOM);
    }
}

/* scores -> probabilities, not yet divided by their sum, in words, and zeros behind them until `wide`; the sum and the logarithm of it
 * before the largest was taken off. */
INLINE float softmax_row(const float *scores, word *probs, int64_t columns, int64_t wide, float *log_sum) {
    v16 most = vector(scores), sum = {0};
    for (int64_t c = LANES; c < columns; c += LANES) most = larger(most, vector(scores + c));
    float top = largest(most);
    for (int64_t c = 0; c < columns; c += LANES) {
        v16 p = exponentials(vector(scores + c) - top);
        sum += p;
        narrow(probs + c / STEP, p);
    }
    memset(probs + columns / STEP, 0, (wide - columns) / STEP * sizeof(word));
    float all = total(sum);
    *log_sum = top + logf(all);
    return all;
}

/* Of ROWS neighboring queries, the first at a position and `count` of them there, by `wide` keys of each segment from key `low` on. The
 * number of columns that they see. */
static int64_t score_rows(const batch_t *batch, const forward_t *at, const segment_t *segments, const int64_t *low, const int64_t *wide,
                          int64_t position, int64_t count) {
    int64_t place = 0, end = 0;
    for (int s = 0; s < 2; place += wide[s], s++) {
        const segment_t *segment = segments + s;
        int64_t high = LEAST(segment->length, position + count - segment->start) - low[s];
        for (int64_t k = 0; k < high; k += PANEL) {
            int64_t columns = LEAST(PANEL, UP(high - k, LANES)), first = low[s] + k;
            float *scores = at->scores + place + k;
            product(scores, at->room, at->queries, ROOM, 1, at->keys + (segment->at + first) * ROOM, PANEL, WIDTH, columns, 0, 1);
            hide(batch, scores, at->room, columns, position, segment->start + first, segment->length - first);
        }
        if (s) return place + UP(high, LANES);
        end = place + MOST(0, UP(high, LANES));
        for (int r = 0; r < ROWS; r++)
            for (int64_t c = end; c < wide[0]; c++) at->scores[r * at->room + c] = -INFINITY;
    }
    return end;
}

/* Up to BAND neighboring queries of a head. */
static void attend_rows(const batch_t *batch, const forward_t *at, const segment_t *segments, int64_t head, int64_t row, int64_t position,
                        int64_t count) {
    int64_t low[2], wide[2], stride = batch->heads * WIDTH;
    fetch(batch->query + (row + BAND) * stride + head * WIDTH, stride * sizeof(float), BAND, WIDTH * sizeof(float), 0);
    for (int s = 0; s < 2; s++) {
        low[s] = MOST(0, lowest(batch, position) - segments[s].start) / PANEL * PANEL;
        wide[s] = MOST(0, UP(LEAST(segments[s].length, position + count - segments[s].start) - low[s], WIDE));
    }
    float sums[BAND];
    ALIGNED float mixed[BAND * VALUE_ROOM];
    for (int64_t q = 0; q < count; q += ROWS) {
        int64_t rows = LEAST(ROWS, count - q), first = (row + q) * batch->heads + head;
        rows_of_floats(at->queries, batch->query + first * WIDTH, batch->heads * WIDTH, rows, ROWS, WIDTH, ROOM, 1);
        int64_t columns = score_rows(batch, at, segments, low, wide, position + q, rows);
        for (int64_t r = 0; r < rows; r++)
            sums[q + r] = softmax_row(at->scores + r * at->room, at->probs + (q + r) * (at->room / STEP), columns, wide[0] + wide[1],
                                      batch->log_sums + first + r * batch->heads);
    }
    for (int s = 0; s < 2; s++) {
        const word *values = at->values + (segments[s].at + low[s]) / STEP * VALUE_ROOM;
        product_of_words(mixed, VALUE_ROOM, at->probs + s * wide[0] / STEP, at->room / STEP, 1, values, VALUE_ROOM, wide[s] / STEP, BAND,
                         VALUE_ROOM, !s);
    }
    for (int64_t r = 0; r < count; r++) {
        element *out = batch->out + ((row + r) * batch->heads + head) * VALUE_WIDTH;
        float factor = 1.0f / sums[r];
        for (int d = 0; d < VALUE_WIDTH; d++) out[d] = store(mixed[r * VALUE_ROOM + d] * factor);
    }
}

/* Writes out and log_sums of units first .. last - 1, each a tree and a key head. `memory` has the size given by forward_room. */
void forward(const batch_t *batch, float *memory, int64_t first, int64_t last) {
    int64_t repeats = batch->heads / batch->kv_heads;
    begin_tiles();
    for (int64_t unit = first; unit < last; unit++) {
        int64_t tree = unit / batch->kv_heads, kv_head = unit % batch->kv_heads;
        const run_t *runs = batch->runs + batch->trees[tree];
        int64_t count = batch->trees[tree + 1] - batch->trees[tree];
        int64_t prefix = runs[0].length, behind = UP(prefix, PANEL);
        forward_t at;
        lay_forward(runs, count, memory, &at);
        for (int64_t run = 0; run < count; run++) {
            int64_t start = run ? prefix : 0;
            segment_t segments[2] = {{0, run ? prefix : 0, 0}, {start, runs[run].length, run ? behind : 0}};
            lay_keys(batch, &at, runs[run], kv_head, segments[1].at);
            if (batch->known && !run && count > 1) continue;
            for (int64_t head = kv_head * repeats; head < (kv_head + 1) * repeats; head++)
                for (int64_t q = 0; q < runs[run].length; q += BAND)
                    attend_rows(batch, &at, segments, head, runs[run].first + q, start + q, LEAST(BAND, runs[run].length - q));
        }
    }
    end_tiles();
}

/* Floats that `forward` works in for one of these trees. */
int64_t forward_room(const batch_t *batch, int64_t trees) {
    int64_t most = 0;
    forward_t at;
    for (int64_t tree = 0; tree < trees; tree++) {
        int64_t begin = batch->trees[tree], size = lay_forward(batch->runs + begin, batch->trees[tree + 1] - begin, 0, &at);
        most = MOST(most, size);
    }
    return most;
}

/* ---- backward */

typedef struct {
    /* of a tree's queries: run by run, in each head by head, each filled up to a multiple of BLOCK by queries that see nothing */
    float *queries;      /* [rows, ROOM] */
    word *query_columns; /* with TILES of each block of up to QUERIES rows, [ROOM, rows / STEP]; else [rows / STEP, ROOM] */
    word *grads;         /* [rows, VALUE_ROOM / STEP] by outputs */
    word *grad_columns;  /* likewise, [VALUE_ROOM, rows / STEP] */
    float *log_sums;     /* [rows] */
    float *shares;       /* [rows] rowsum(dO * O) */
    float *grad_query;   /* [rows, ROOM] */
    /* of KEYS keys */
    float *keys;         /* panels [ROOM, PANEL], scaled */
    word *key_pairs;     /* [KEYS / STEP, ROOM], scaled */
    word *values;        /* panels [VALUE_ROOM / STEP, PANEL] */
    float *grad_key;     /* [ROOM, KEYS] */
    float *grad_value;   /* [VALUE_ROOM, KEYS] */
    /* of QUERIES x KEYS */
    word *probs;         /* [QUERIES / STEP, KEYS] neighbors are one below the other */
    word *slopes;        /* likewise, dS */
    word *flat_slopes;   /* [QUERIES, KEYS / STEP] neighbors are side by side */
} backward_t;

static int64_t lay_backward(const batch_t *batch, const run_t *runs, int64_t count, float *memory, backward_t *at) {
    int64_t rows = 0;
    for (int64_t run = 0; run < count; run++) rows += UP(runs[run].length, BLOCK) * (batch->heads / batch->kv_heads);
    float *room = memory;
    at->queries = take(&room, rows * ROOM);
    at->query_columns = STEP > 1 ? take(&room, rows / STEP * ROOM) : at->queries;
    at->grads = take(&room, rows * VALUE_ROOM / STEP);
    at->grad_columns = STEP > 1 ? take(&room, rows / STEP * VALUE_ROOM) : at->grads;
    at->log_sums = take(&room, rows);
    at->shares = take(&room, rows);
    at->grad_query = take(&room, rows * ROOM);
    at->keys = take(&room, KEYS * ROOM);
    at->key_pairs = take(&room, KEYS / STEP * ROOM);
    at->values = take(&room, KEYS * VALUE_ROOM / STEP);
    at->grad_key = take(&room, KEYS * ROOM);
    at->grad_value = take(&room, KEYS * VALUE_ROOM);
    at->probs = take(&room, QUERIES / STEP * KEYS);
    at->slopes = take(&room, QUERIES / STEP * KEYS);
    at->flat_slopes = STEP > 1 ? take(&room, QUERIES * KEYS / STEP) : at->slopes;
    return room - memory;
}

/* BLOCK rows of numbers from row `before` of their block on, where with TILES a column has `across` words. */
INLINE void lay_columns(word *out, const float *rows, int64_t width, int64_t before, int64_t across) {
    ALIGNED word words[LANES * MOST(ROOM, VALUE_ROOM)];
    if (TILES) {
        join_rows(words, rows, BLOCK, width);
        transpose(out + before / STEP, across, words, width, LANES, width);
    } else if (STEP > 1) {
        join_rows(out + before / STEP * width, rows, BLOCK, width);
    }
}

/* One head's queries of a run, from row `place` on. */
static void lay_queries(const batch_t *batch, const backward_t *at, run_t run, int64_t head, int64_t place) {
    ALIGNED float grads[BLOCK * VALUE_ROOM], outs[BLOCK * VALUE_ROOM];
    for (int64_t q = 0; q < run.length; q += BLOCK) {
        int64_t row = (run.first + q) * batch->heads + head, count = LEAST(BLOCK, run.length - q), to = place + q;
        int64_t stride = batch->heads * VALUE_WIDTH, before = q % QUERIES, block = (to - before) / STEP;
        int64_t across = LEAST(QUERIES, UP(run.length - q + before, BLOCK)) / STEP;
        rows_of_floats(at->queries + to * ROOM, batch->query + row * WIDTH, batch->heads * WIDTH, count, BLOCK, WIDTH, ROOM, 1);
        lay_columns(at->query_columns + block * ROOM, at->queries + to * ROOM, ROOM, before, across);
        rows_of_elements(grads, batch->grad_out + row * VALUE_WIDTH, stride, count, BLOCK, VALUE_WIDTH, VALUE_ROOM, 1);
        rows_of_elements(outs, batch->out + row * VALUE_WIDTH, stride, count, BLOCK, VALUE_WIDTH, VALUE_ROOM, 1);
        lay_columns(at->grad_columns + block * VALUE_ROOM, grads, VALUE_ROOM, before, across);
        for (int r = 0; r < BLOCK; r++) {
            v16 share = {0};
            for (int d = 0; d < VALUE_ROOM; d += LANES) {
                v16 grad = vector(grads + r * VALUE_ROOM + d);
                share += grad * vector(outs + r * VALUE_ROOM + d);
                narrow(at->grads + ((to + r) * VALUE_ROOM + d) / STEP, grad);
            }
            at->shares[to + r] = total(share);
            at->log_sums[to + r] = r < count ? batch->log_sums[row + r * batch->heads] : INFINITY;
        }
    }
    memset(at->grad_query + place * ROOM, 0, UP(run.length, BLOCK) * ROOM * sizeof(float));
}

/* `count` keys from a row on. */
static void lay_tile(const batch_t *batch, const backward_t *at, int64_t first, int64_t count, int64_t kv_head) {
    ALIGNED float rows[PANEL * MOST(ROOM, VALUE_ROOM)];
    ALIGNED word words[PANEL * VALUE_ROOM / STEP];
    for (int64_t k = 0; k < KEYS; k += PANEL) {
        int64_t head = (first + k) * batch->kv_heads + kv_head, left = MOST(0, LEAST(PANEL, count - k));
        rows_of_floats(rows, batch->key + head * WIDTH, batch->kv_heads * WIDTH, left, PANEL, WIDTH, ROOM, batch->scaling);
        transpose(at->keys + k * ROOM, PANEL, rows, ROOM, PANEL, ROOM);
        join_rows(at->key_pairs + k / STEP * ROOM, rows, PANEL, ROOM);
        rows_of_elements(rows, batch->value + head * VALUE_WIDTH, batch->kv_heads * VALUE_WIDTH, left, PANEL, VALUE_WIDTH, VALUE_ROOM, 1);
        for (int64_t i = 0; i < PANEL * VALUE_ROOM; i += LANES) narrow(words + i / STEP, vector(rows + i));
        transpose(at->values + k * (VALUE_ROOM / STEP), PANEL, words, VALUE_ROOM / STEP, PANEL, VALUE_ROOM / STEP);
    }
    int64_t key = WIDTH * sizeof(float), value = VALUE_WIDTH * sizeof(element), grad = VALUE_WIDTH * sizeof(float);
    int64_t head = first * batch->kv_heads + kv_head, next = head + KEYS * batch->kv_heads;
    fetch(batch->grad_key + head * WIDTH, batch->kv_heads * key, count, key, 1);
    fetch(batch->grad_value + head * VALUE_WIDTH, batch->kv_heads * grad, count, grad, 1);
    fetch(batch->key + next * WIDTH, batch->kv_heads * key, KEYS, key, 0);
    fetch(batch->value + next * VALUE_WIDTH, batch->kv_heads * value, KEYS, value, 0);
    memset(at->grad_key, 0, KEYS * ROOM * sizeof(float));
    memset(at->grad_value, 0, KEYS * VALUE_ROOM * sizeof(float));
}

/* Probabilities and slopes of ROWS queries, the first of them number q of its block, and PANEL keys from key k of the tile. They see
 * `columns` of them. */
INLINE void slope_piece(const backward_t *at, const float *scores, const float *grads, int64_t row, int64_t q, int64_t k, int64_t columns) {
    for (int r = 0; r < ROWS; r += STEP)
        for (int64_t c = 0; c < PANEL; c += LANES) {
            v16 probs[STEP], slopes[STEP];
            for (int i = 0; i < STEP; i++) {
                int64_t from = (r + i) * PANEL + c;
                v16 none = {0};
                probs[i] = c < columns ? exponentials(vector(scores + from) - at->log_sums[row + r + i]) : none;
                slopes[i] = c < columns ? probs[i] * (vector(grads + from) - at->shares[row + r + i]) : none;
                if (STEP > 1) narrow(at->flat_slopes + ((q + r + i) * KEYS + k + c) / STEP, slopes[i]);
            }
            int64_t to = (q + r) / STEP * KEYS + k + c;
            join(at->probs + to, probs[0], probs[STEP - 1]);
            join(at->slopes + to, slopes[0], slopes[STEP - 1]);
        }
}

/* What up to QUERIES neighboring queries of a head, laid from `row` on, and a tile's `keys` keys, from position `start` on, owe each
 * other. */
static void learn_block(const batch_t *batch, const backward_t *at, int64_t row, int64_t position, int64_t count, int64_t start,
                        int64_t keys) {
    ALIGNED float scores[ROWS * PANEL], grads[BAND * PANEL];
    const word *query_columns = at->query_columns + row / STEP * ROOM, *grad_columns = at->grad_columns + row / STEP * VALUE_ROOM;
    for (int64_t q = 0; q < count; q += BAND) {
        int64_t low = MOST(0, lowest(batch, position + q) - start) / PANEL * PANEL;
        int64_t high = UP(LEAST(keys, position + LEAST(q + BAND, count) - start), WIDE);
        for (int64_t k = low; k < high; k += PANEL) {
            product_of_words(grads, PANEL, at->grads + (row + q) * (VALUE_ROOM / STEP), VALUE_ROOM / STEP, 1,
                             at->values + k * (VALUE_ROOM / STEP), PANEL, VALUE_ROOM / STEP, BAND, LEAST(PANEL, high - k), 1);
            for (int64_t r = q; r < q + BAND; r += ROWS) {
                int64_t seen = r < count ? LEAST(keys, position + LEAST(r + ROWS, count) - start) - k : 0;
                int64_t columns = LEAST(PANEL, UP(MOST(seen, 0), LANES));
                product(scores, PANEL, at->queries + (row + r) * ROOM, ROOM, 1, at->keys + k * ROOM, PANEL, WIDTH, columns, 0, 1);
                if (columns) hide(batch, scores, PANEL, columns, position + r, start + k, keys - k);
                slope_piece(at, scores, grads + (r - q) * PANEL, row + r, r, k, columns);
            }
        }
        if (low < high)
            product_of_words(at->grad_query + (row + q) * ROOM, ROOM, at->flat_slopes + (q * KEYS + low) / STEP, KEYS / STEP, 1,
                             at->key_pairs + low / STEP * ROOM, ROOM, (high - low) / STEP, BAND, ROOM, 0);
    }
    for (int64_t k = 0; k < keys; k += PANEL) {
        int64_t begin = MOST(0, start + k - position) / BAND * BAND;
        int64_t end = UP(LEAST(count, last_reader(batch, start + LEAST(k + PANEL, keys)) - position), BAND);
        if (begin >= end) continue;
        int64_t from = begin / STEP, to = from * KEYS + k, across = TILES ? UP(count, BLOCK) / STEP : 1, steps = (end - begin) / STEP;
        int64_t value_step = TILES ? 1 : VALUE_ROOM, key_step = TILES ? 1 : ROOM;
        product_of_words(at->grad_value + k, KEYS, grad_columns + from * value_step, across, value_step, at->probs + to, KEYS, steps,
                         VALUE_ROOM, PANEL, 0);
        product_of_words(at->grad_key + k, KEYS, query_columns + from * key_step, across, key_step, at->slopes + to, KEYS, steps, ROOM,
                         PANEL, 0);
    }
}

/* Gradients by `count` keys from a row on, and by their values. */
static void keep_tile(const batch_t *batch, const backward_t *at, int64_t first, int64_t count, int64_t kv_head) {
    ALIGNED float rows[KEYS * MOST(ROOM, VALUE_ROOM)];
    int64_t head = first * batch->kv_heads + kv_head;
    transpose(rows, ROOM, at->grad_key, KEYS, ROOM, KEYS);
    for (int64_t row = 0; row < count; row++) {
        float *restrict out = batch->grad_key + (head + row * batch->kv_heads) * WIDTH;
        for (int d = 0; d < WIDTH; d++) out[d] = rows[row * ROOM + d] * batch->scaling;
    }
    transpose(rows, VALUE_ROOM, at->grad_value, KEYS, VALUE_ROOM, KEYS);
    for (int64_t row = 0; row < count; row++)
        memcpy(batch->grad_value + (head + row * batch->kv_heads) * VALUE_WIDTH, rows + row * VALUE_ROOM, VALUE_WIDTH * sizeof(float));
}

static void learn_tree(const batch_t *batch, const backward_t *at, const run_t *runs, int64_t count, int64_t kv_head) {
    int64_t heads = batch->heads, repeats = heads / batch->kv_heads, prefix = runs[0].length;
    int64_t place = 0, own = 0;
    for (int64_t run = 0; run < count; run++)
        for (int64_t r = 0; r < repeats; r++, place += UP(runs[run].length, BLOCK))
            lay_queries(batch, at, runs[run], kv_head * repeats + r, place);
    for (int64_t seen = 0; seen < count; own += UP(runs[seen].length, BLOCK) * repeats, seen++)
        for (int64_t k = 0; k < runs[seen].length; k += KEYS) {
            int64_t first = runs[seen].first + k, keys = LEAST(KEYS, runs[seen].length - k), start = (seen ? prefix : 0) + k;
            lay_tile(batch, at, first, keys, kv_head);
            place = own;
            for (int64_t run = seen; run < (seen ? seen + 1 : count); run++)
                for (int64_t r = 0; r < repeats; r++, place += UP(runs[run].length, BLOCK))
                    for (int64_t q = 0; q < runs[run].length; q += QUERIES)
                        learn_block(batch, at, place + q, (run ? prefix : 0) + q, LEAST(QUERIES, runs[run].length - q), start, keys);
            keep_tile(batch, at, first, keys, kv_head);
        }
    place = 0;
    for (int64_t run = 0; run < count; run++)
        for (int64_t r = 0; r < repeats; r++, place += UP(runs[run].length, BLOCK))
            for (int64_t q = 0; q < runs[run].length; q++) {
                int64_t to = (runs[run].first + q) * heads + kv_head * repeats + r;
                memcpy(batch->grad_query + to * WIDTH, at->grad_query + (place + q) * ROOM, WIDTH * sizeof(float));
            }
}

/* Writes the gradients of units first .. last - 1, each a tree and a key head. `memory` has the size given by backward_room. */
void backward(const batch_t *batch, float *memory, int64_t first, int64_t last) {
    begin_tiles();
    for (int64_t unit = first; unit < last; unit++) {
        int64_t tree = unit / batch->kv_heads, begin = batch->trees[tree], count = batch->trees[tree + 1] - begin;
        backward_t at;
        lay_backward(batch, batch->runs + begin, count, memory, &at);
        learn_tree(batch, &at, batch->runs + begin, count, unit % batch->kv_heads);
    }
    end_tiles();
}

/* Floats that `backward` works in for one of these trees. */
int64_t backward_room(const batch_t *batch, int64_t trees) {
    int64_t most = 0;
    backward_t at;
    for (int64_t tree = 0; tree < trees; tree++) {
        int64_t begin = batch->trees[tree], size = lay_backward(batch, batch->runs + begin, batch->trees[tree + 1] - begin, 0, &at);
        most = MOST(most, size);
    }
    return most;
}
