/* Numbers as they are kept and as they are worked with.
 *   HALF  1 where an element is bfloat16, 0 where it is float32
 */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16 /* floats side by side; the compiler maps them to the processor's vectors */

#if HALF
typedef uint16_t element;

static inline float load(element x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static inline element store(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (element)(x != x ? 0x7fc0 : rounded);
}
#else
typedef float element;

static inline float load(element x) { return x; }
static inline element store(float x) { return x; }
#endif

/* e^x within 2e-7 of its size: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; 0 below -87, and e^88 above 88. */
static inline float exponential(float x) {
    float kept = x < -87.0f ? 0.0f : 1.0f;
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts: the first product is exact */
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale * kept;
}

static inline float itself(float x) { return x; }

/* The largest of numbers that are not empty. */
static inline float largest_score(const float *x, int64_t count) {
    float lanes[LANES], most;
    for (int j = 0; j < LANES; j++) lanes[j] = x[0];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < count; i++) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    most = lanes[0];
    for (int j = 1; j < LANES; j++) most = lanes[j] > most ? lanes[j] : most;
    return most;
}

#endif
