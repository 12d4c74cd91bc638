/* Rows of logits: the logarithm of each row's sum of exponentials, its probabilities, and other values for a loss.
 *
 *     log_sum = log(sum over i of e^x_i),  p_i = e^(x_i - log_sum)
 *     expected = sum of p_i x_i,  squares = sum of p_i^2,  total = sum of x_i
 *
 * A row is read once from memory; all arithmetic is in float32. Compiled at run time by rlhf.native.library with
 *   HALF  1 where logits and probabilities are bfloat16, 0 where they are float32
 *
 * NaN comes through.
 */
#include "vectors.h"

int64_t lanes(void) { return LANES; }

typedef struct {
    int64_t width;
    const element *logits; /* [rows, width] */
    element *probs;        /* [rows, width], may be the logits themselves; NULL if not requested */
    float *log_sums;       /* [rows] */
    float *expected, *squares, *totals; /* [rows]; NULL likewise */
} rows_t;

/* x [width] in float32, and -infinity behind it until a multiple of LANES; its largest. */
static float widen(const element *x, int64_t width, float *out) {
    int64_t i = 0;
    v16 most = (v16){0} - INFINITY;
    for (; i + LANES <= width; i += LANES) {
        v16 here = elements(x + i);
        keep(out + i, here);
        most = larger(here, most);
    }
    if (i < width) {
        for (int64_t j = i; j < i + LANES; j++) out[j] = j < width ? load(x[j]) : -INFINITY;
        most = larger(vector(out + i), most);
    }
    return largest(most);
}

/* x -> e^(x - most), `width` numbers of a row and the rest behind them; and the row's sums. */
INLINE float sum_up(const rows_t *rows, float *x, int64_t row, float most, const int more) {
    v16 sums = {0}, weighted = {0}, squares = {0}, none = {0};
    for (int64_t i = 0; i < rows->width; i += LANES) {
        v16 above = vector(x + i) - most, power = exponentials(above);
        keep(x + i, power);
        sums += power;
        if (more) weighted += chosen(power > 0, power * above, none); /* a logit of -infinity has no part in it */
        if (more) squares += power * power;
    }
    float sum = total(sums);
    rows->log_sums[row] = most + logf(sum);
    if (rows->expected) rows->expected[row] = most + total(weighted) / sum;
    if (rows->squares) rows->squares[row] = total(squares) / (sum * sum);
    return sum;
}

/* Rows first .. last - 1. `numbers` has room for a row and LANES more. */
void softmax(const rows_t *rows, float *numbers, int64_t first, int64_t last) {
    const int64_t width = rows->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        float most = widen(rows->logits + row * width, width, numbers);
        if (rows->totals) {
            float all = 0;
            for (int64_t i = 0; i < width; i++) all += numbers[i];
            rows->totals[row] = all;
        }
        float sum = rows->expected || rows->squares ? sum_up(rows, numbers, row, most, 1) : sum_up(rows, numbers, row, most, 0);
        if (!rows->probs) continue;
        element *probs = rows->probs + row * width;
        float share = 1.0f / sum;
        for (int64_t i = 0; i < whole; i += LANES) keep_elements(probs + i, vector(numbers + i) * share);
        for (int64_t i = whole; i < width; i++) probs[i] = store(numbers[i] * share);
    }
}
