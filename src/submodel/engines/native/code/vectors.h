/* Vectors as wide as the machine's, loaded from anywhere. */
#pragma once
#include <stdint.h>
#include <string.h>
#include <math.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#endif
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
#define WIDEST 5
#define TALLEST 8
#else
#define WIDEST 3
#define TALLEST 4
#endif

typedef int64_t i64;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec x) { *(loose *)p = x; }
/* keeps a value in a register that is used several times: compilers would load it every time */
#if defined(__x86_64__) && LANES == 16
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined(__x86_64__)
#define HOLD(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define HOLD(x) __asm__("" : "+w"(x))
#else
#define HOLD(x)
#endif
INLINE vec spread(float x) { return x - (vec){0}; }
INLINE float total(vec x)
{
#if defined(__AVX512F__) && LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    float t[LANES];
    store(t, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
#endif
}
INLINE mask first(i64 count)
{
    mask m;
    for (int i = 0; i < LANES; i++) m[i] = i < count ? -1 : 0;
    return m;
}
INLINE vec masked(vec x, mask m) { return (vec)((mask)x & m); }
/* what lies beyond is written back as it was: memory goes on behind the last value */
INLINE void store_masked(float *p, vec x, mask m)
{
    store(p, (vec)(((mask)load(p) & ~m) | ((mask)x & m)));
}
INLINE void store_first(float *p, vec x, i64 count)
{
    if (count == LANES)
        store(p, x);
    else
        store_masked(p, x, first(count));
}
