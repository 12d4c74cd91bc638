/* Rows of logits: the logarithm of each row's sum of exponentials, its probabilities, and what else a loss asks of them.
 *
 *     log_sum = log(sum over i of e^x_i),  p_i = e^(x_i - log_sum)
 *     expected = sum of p_i x_i,  squares = sum of p_i^2,  total = sum of x_i
 *
 * A row is read once from memory; all arithmetic is in float32. Compiled at run time by rlhf.native.library with
 *   HALF  1 where logits and probabilities are bfloat16, 0 where they are float32
 */
#include "numbers.h"

typedef struct {
    int64_t width;
    const element *logits; /* [rows, width] */
    element *probs;        /* [rows, width], may be the logits themselves; NULL where nobody asks */
    float *log_sums;       /* [rows], and so are the others; NULL likewise */
    float *expected, *squares, *totals;
} rows_t;

LARGEST(largest_logit, element, load)

/* Those of the sums that only some losses ask for, from e^(x - most). */
static void more_sums(const rows_t *rows, const element *x, const float *powers, int64_t row, float most, float sum) {
    float weighted = 0, squares = 0, total = 0;
    for (int64_t i = 0; i < rows->width; i++) {
        float above = load(x[i]) - most;
        weighted += powers[i] > 0 ? powers[i] * above : 0; /* a logit of -infinity has no part in it */
        squares += powers[i] * powers[i];
        total += load(x[i]);
    }
    if (rows->expected) rows->expected[row] = most + weighted / sum;
    if (rows->squares) rows->squares[row] = squares / (sum * sum);
    if (rows->totals) rows->totals[row] = total;
}

/* Rows first .. last - 1. `powers` has room for a row. */
void softmax(const rows_t *rows, float *powers, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        const element *x = rows->logits + row * rows->width;
        float most = largest_logit(x, rows->width), sum = 0;
        for (int64_t i = 0; i < rows->width; i++) {
            powers[i] = exponential(load(x[i]) - most);
            sum += powers[i];
        }
        if (rows->log_sums) rows->log_sums[row] = most + logf(sum);
        if (rows->expected || rows->squares || rows->totals) more_sums(rows, x, powers, row, most, sum);
        if (!rows->probs) continue;
        float share = 1.0f / sum;
        element *probs = rows->probs + row * rows->width;
        for (int64_t i = 0; i < rows->width; i++) probs[i] = store(powers[i] * share);
    }
}
