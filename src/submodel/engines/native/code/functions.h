/* Ends of rows, and functions of whole vectors: exponentials and the activations of transformers. */
#pragma once
#include "vectors.h"

/* The first values of a vector, without access to memory beyond them. */
INLINE vec load_first(const float *p, i64 count)
{
#if defined(__AVX512F__) && LANES == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
#else
    vec x = {0};
    for (i64 i = 0; i < count; i++) x[i] = p[i];
    return x;
#endif
}
INLINE void put_first(float *p, vec x, i64 count)
{
#if defined(__AVX512F__) && LANES == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)x);
#else
    for (i64 i = 0; i < count; i++) p[i] = x[i];
#endif
}
INLINE vec fetch(const float *p, i64 left) { return left >= LANES ? load(p) : load_first(p, left); }
INLINE void put(float *p, vec x, i64 left)
{
    if (left >= LANES)
        store(p, x);
    else
        put_first(p, x, left);
}
/* The larger or smaller of two values; y if one of them is NaN. */
#if defined(__AVX512F__) && LANES == 16
INLINE vec larger(vec x, vec y) { return (vec)_mm512_max_ps((__m512)x, (__m512)y); }
INLINE vec smaller(vec x, vec y) { return (vec)_mm512_min_ps((__m512)x, (__m512)y); }
INLINE float largest(vec x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE vec reciprocal(vec x) /* not for NaN; one step of Newton's method doubles 14 bits */
{
    vec r = (vec)_mm512_rcp14_ps((__m512)x);
    return r * (2.0f - x * r);
}
INLINE vec first_or(vec x, i64 count, float rest) /* of at least one value */
{
    __mmask16 m = count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)-1;
    return (vec)_mm512_mask_blend_ps(m, _mm512_set1_ps(rest), (__m512)x);
}
INLINE vec last_or(vec x, i64 count, float rest) /* all but the first `count` */
{
    __mmask16 m = count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)-1;
    return (vec)_mm512_mask_blend_ps(m, (__m512)x, _mm512_set1_ps(rest));
}
INLINE vec nought_below(vec y, vec x, float limit)
{
    return (vec)_mm512_maskz_mov_ps(
        _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_NLT_UQ), (__m512)y);
}
INLINE vec with_sign(vec size, vec sign)
{
    __m512i top = _mm512_set1_epi32(INT32_MIN); /* where it has a bit, that of the sign */
    return (vec)_mm512_ternarylogic_epi32(top, (__m512i)sign, (__m512i)size, 0xca);
}
#else
INLINE vec choose(mask m, vec yes, vec no) { return (vec)(((mask)yes & m) | ((mask)no & ~m)); }
INLINE vec larger(vec x, vec y) { return choose(x > y, x, y); }
INLINE vec smaller(vec x, vec y) { return choose(x < y, x, y); }
INLINE vec reciprocal(vec x) { return 1.0f / x; }
INLINE float largest(vec x)
{
    float t[LANES];
    store(t, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
}
INLINE vec first_or(vec x, i64 count, float rest)
{
    return count < LANES ? choose(first(count), x, spread(rest)) : x;
}
INLINE vec last_or(vec x, i64 count, float rest)
{
    return choose(first(count), spread(rest), x);
}
INLINE vec nought_below(vec y, vec x, float limit) { return choose(x < limit, spread(0), y); }
INLINE vec with_sign(vec size, vec sign) { return choose(sign < 0.0f, -size, size); }
#endif

/* e^x to 2 units of the last place (Cephes' polynomial); 0 below -87; NaN stays NaN */
INLINE vec exponential(vec x)
{
    vec y = larger(spread(-87.0f), smaller(spread(88.0f), x));
    vec n = y * 1.44269504f + 12582912.0f; /* rounds to an integer, in the last bits */
    mask power = (mask)n << 23;
    n -= 12582912.0f;
    y = y - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = spread(1.9875691500e-4f);
    p = p * y + 1.3981999507e-3f;
    p = p * y + 8.3334519073e-3f;
    p = p * y + 4.1665795894e-2f;
    p = p * y + 1.6666665459e-1f;
    p = p * y + 5.0000001201e-1f;
    p = p * (y * y) + y + 1.0f;
    return nought_below((vec)((mask)p + power), x, -87.0f);
}
INLINE vec sigmoid(vec x) { return reciprocal(1.0f + exponential(-x)); }

enum { GELU_TANH, GELU, SILU };

/* erf to 1.5e-7 (Abramowitz and Stegun 7.1.26); bell: e^(-x^2), which its slope needs, too */
INLINE vec error_function(vec x, vec *bell)
{
    vec size = larger(x, -x), t = reciprocal(1.0f + 0.3275911f * size);
    *bell = exponential(-x * x);
    vec p = spread(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    return with_sign(1.0f - p * t * *bell, x);
}
#define ROOT_HALF 0.70710678f
#define LINEAR 1.59576912f /* 2 sqrt(2 / pi) */
#define CUBIC 0.0713548163f

/* x times a gate: 0.5 x (1 + tanh u) = x sigmoid(2 u), 0.5 x (1 + erf(x / sqrt 2)), ... */
INLINE vec activate(i64 kind, vec x)
{
    vec bell;
    if (kind == GELU_TANH) return x * sigmoid(x * (LINEAR + CUBIC * x * x));
    if (kind == GELU) return x * (0.5f + 0.5f * error_function(x * ROOT_HALF, &bell));
    return x * sigmoid(x);
}
INLINE vec slope(i64 kind, vec x)
{
    vec bell, share;
    if (kind == GELU) {
        share = 0.5f + 0.5f * error_function(x * ROOT_HALF, &bell);
        return share + x * 0.398942280f * bell;
    }
    vec inner = kind == GELU_TANH ? LINEAR + 3.0f * CUBIC * x * x : spread(1.0f);
    share = sigmoid(kind == GELU_TANH ? x * (LINEAR + CUBIC * x * x) : x);
    return share + x * inner * share * (1.0f - share);
}
#define EACH_KIND(CODE)                                                                         \
    if (kind == GELU_TANH) { CODE(GELU_TANH) }                                                  \
    else if (kind == GELU) { CODE(GELU) }                                                       \
    else { CODE(SILU) }

void activation_forward(i64 kind, const float *x, float *out, i64 count)
{
#define CODE(K) for (i64 i = 0; i < count; i += LANES) put(out + i, activate(K, fetch(x + i, count - i)), count - i);
    EACH_KIND(CODE)
#undef CODE
}
void activation_backward(i64 kind, const float *x, const float *g, float *dx, i64 count)
{
#define CODE(K)                                                                                 \
    for (i64 i = 0; i < count; i += LANES)                                                      \
        put(dx + i, fetch(g + i, count - i) * slope(K, fetch(x + i, count - i)), count - i);
    EACH_KIND(CODE)
#undef CODE
}
