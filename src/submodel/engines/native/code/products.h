/* Gradients of filters: d[c][k] = sum over rows and x of g[c][row][x] * in[offset[k] + row][x]. */
#pragma once
#include "tiles.h"

#define DOT(M, Q)                                                                               \
    static void dot_##M##_##Q(const float *g, i64 plane, i64 g_row, const float *in, i64 in_row,  \
                              const i64 *offsets, i64 rows, i64 length, float *sums)            \
    {                                                                                           \
        vec sum[M][Q];                                                                          \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++)                                 \
                sum[m][q] = load(sums + (m * Q + q) * LANES);                                   \
        for (i64 r = 0; r < rows; r++)                                                          \
            for (i64 x = 0; x < length; x += LANES) {                                           \
                const float *gx = g + r * g_row + x, *px = in + r * in_row + x;                 \
                vec a[M];                                                                       \
                _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) a[m] = load(gx + m * plane); \
                _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++) {                           \
                    vec b = load(px + offsets[q]);                                              \
                    HOLD(b);                                                                    \
                    _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) sum[m][q] += a[m] * b;  \
                }                                                                               \
            }                                                                                   \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++)                                 \
                store(sums + (m * Q + q) * LANES, sum[m][q]);                                   \
    }                                                                                           \
    static void rest_##M##_##Q(const float *g, i64 plane, i64 g_row, const float *in, i64 in_row, \
                               const i64 *offsets, i64 rows, i64 length, float *sums)           \
    {                                                                                           \
        mask tail = first(length);                                                              \
        vec sum[M][Q];                                                                          \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++)                                 \
                sum[m][q] = load(sums + (m * Q + q) * LANES);                                   \
        for (i64 r = 0; r < rows; r++) {                                                        \
            const float *gx = g + r * g_row, *px = in + r * in_row;                             \
            vec a[M];                                                                           \
            _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                 \
                a[m] = masked(load(gx + m * plane), tail);                                      \
            _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++) {                               \
                vec b = masked(load(px + offsets[q]), tail);                                    \
                _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) sum[m][q] += a[m] * b;      \
            }                                                                                   \
        }                                                                                       \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int q = 0; q < Q; q++)                                 \
                store(sums + (m * Q + q) * LANES, sum[m][q]);                                   \
    }
typedef void dot(const float *, i64, i64, const float *, i64, const i64 *, i64, i64, float *);
DOT(1, 1) DOT(1, 3) DOT(2, 1) DOT(2, 3) DOT(4, 1) DOT(4, 3)
#if WIDEST == 5
DOT(1, 6) DOT(2, 6) DOT(4, 6)
#define MOST_DOTS 6
#define BY_COUNT(NAME, M) {NAME##_##M##_1, NAME##_##M##_3, NAME##_##M##_6}
#else
#define MOST_DOTS 3
#define BY_COUNT(NAME, M) {NAME##_##M##_1, NAME##_##M##_3}
#endif
static dot *const dots[3][MOST_DOTS / 3 + 1] = {BY_COUNT(dot, 1), BY_COUNT(dot, 2), BY_COUNT(dot, 4)};
static dot *const rests[3][MOST_DOTS / 3 + 1] = {BY_COUNT(rest, 1), BY_COUNT(rest, 2),
                                                 BY_COUNT(rest, 4)};

static i64 dots_of(i64 left) { return left >= MOST_DOTS ? MOST_DOTS : left >= 3 ? 3 : 1; }
#define STRIP 3072 /* floats */
#define NEAR 98304

/* the same where planes are small and channels many: vectors along the inputs' channels */
#define OUTER(M, V)                                                                             \
    static void outer_##M##_##V(const float *g, i64 plane, i64 g_row, const float *turned,      \
                                i64 in_row, i64 wide, i64 rows, i64 length, float *out)         \
    {                                                                                           \
        vec sum[M][V];                                                                          \
        for (int m = 0; m < M; m++)                                                             \
            for (int v = 0; v < V; v++) sum[m][v] = (vec){0};                                   \
        for (i64 r = 0; r < rows; r++) {                                                        \
            const float *gr = g + r * g_row, *p = turned + r * in_row * wide;                   \
            for (i64 x = 0; x < length; x++, p += wide) {                                       \
                vec b[V];                                                                       \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) b[v] = load(p + v * LANES); \
                _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                           \
                    vec a = spread(gr[m * plane + x]);                                          \
                    _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) sum[m][v] += a * b[v];  \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
        for (int m = 0; m < M; m++)                                                             \
            for (int v = 0; v < V; v++) store(out + (m * V + v) * LANES, sum[m][v]);            \
    }
typedef void outer(const float *, i64, i64, const float *, i64, i64, i64, i64, float *);
OUTER(1, 1) OUTER(1, 2) OUTER(2, 1) OUTER(2, 2) OUTER(4, 1) OUTER(4, 2)
#if WIDEST == 5
OUTER(8, 1) OUTER(8, 2)
static outer *const outers[4][2] = {{outer_1_1, outer_1_2}, {outer_2_1, outer_2_2},
                                    {outer_4_1, outer_4_2}, {outer_8_1, outer_8_2}};
#else
static outer *const outers[3][2] = {{outer_1_1, outer_1_2}, {outer_2_1, outer_2_2},
                                    {outer_4_1, outer_4_2}};
#endif

/* transposing an image is faster if it is used for several taps, or is small */
static int uses_outer(const op *o, i64 n)
{
    return 4 * o->c >= 3 * LANES && o->oh * vectors(o->ow * n) < (o->kh * o->kw > 3 ? 64 : 16);
}
