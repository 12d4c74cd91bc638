/* Vectors of LANES numbers, by what gcc and clang share and, behind #ifdef, by a processor's own instructions. */
#ifndef VECTORS_H
#define VECTORS_H

#include "numbers.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef float v16_anywhere __attribute__((vector_size(64), aligned(4), may_alias)); /* in memory */
typedef uint16_t h16 __attribute__((vector_size(32)));
typedef uint16_t h16_anywhere __attribute__((vector_size(32), aligned(2), may_alias));

INLINE v16 vector(const float *x) { return *(const v16_anywhere *)x; }
INLINE void keep(float *out, v16 x) { *(v16_anywhere *)out = x; }

/* The same of bfloat16 in memory. */
INLINE v16 vector_of_halves(const uint16_t *x) { return (v16)(__builtin_convertvector(*(const h16_anywhere *)x, v16u) << 16); }

INLINE void keep_halves(uint16_t *out, v16 x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    v16u bits = (v16u)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, none = (v16u)(x != x);
    *(h16_anywhere *)out = __builtin_convertvector((rounded & ~none) | (none & 0x7fc0), h16);
#endif
}

/* The same of elements, whichever they are. */
INLINE v16 elements(const element *x) {
#if HALF
    return vector_of_halves(x);
#else
    return vector(x);
#endif
}

INLINE void keep_elements(element *out, v16 x) {
#if HALF
    keep_halves(out, x);
#else
    keep(out, x);
#endif
}

/* yes where a mask is set, and no elsewhere. */
INLINE v16 chosen(v16i mask, v16 yes, v16 no) { return (v16)((mask & (v16i)yes) | (~mask & (v16i)no)); }

/* Where x is NaN, y. */
INLINE v16 larger(v16 x, v16 y) { return chosen(x > y, x, y); }

INLINE float largest(v16 x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    return lanes[0];
#endif
}

INLINE float total(v16 x) {
    float sum = 0;
    for (int j = 0; j < LANES; j++) sum += x[j];
    return sum;
}

/* What `exponential` gives of numbers up to 88, of LANES of them. */
INLINE v16 exponentials(v16 x) {
#ifdef __AVX512F__
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ); /* NaN too; numbers below are slow in scalef */
    v16 n = (v16)_mm512_roundscale_ps((__m512)(x * 1.44269504f), 0);
    v16 r = (v16)_mm512_fnmadd_ps((__m512)n, _mm512_set1_ps(0.693359375f), (__m512)x) + n * 2.12194440e-4f;
    v16 p = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    return (v16)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int j = 0; j < LANES; j++) lanes[j] = exponential(lanes[j]);
    memcpy(&x, lanes, sizeof lanes);
    return x;
#endif
}

#endif
