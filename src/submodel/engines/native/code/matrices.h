/* Products of matrices in place: whole half-vectors along rows, weights wherever they lie. */
#pragma once
#include "products.h"

typedef float half __attribute__((vector_size(2 * LANES)));
typedef float loose_half __attribute__((vector_size(2 * LANES), aligned(4), may_alias));

/* out[m][x] = sum over k of w[m][k] in[k][x], for V vectors and perhaps half a one */
#define MATRIX(M, V, H)                                                                          \
    static void matrix_##M##_##V##_##H(const float *w, i64 sm, i64 sk, const float *in, i64 in_row, \
                                       i64 count, float *out, i64 out_row)                       \
    {                                                                                            \
        vec sum[M][V + 1];                                                                       \
        half rest[M];                                                                            \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) sum[m][v] = (vec){0};            \
            rest[m] = (half){0};                                                                 \
        }                                                                                        \
        for (i64 k = 0; k < count; k++, in += in_row, w += sk) {                                 \
            vec x[V + 1];                                                                        \
            half y = {0};                                                                        \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) x[v] = load(in + v * LANES);     \
            if (H) y = *(const loose_half *)(in + V * LANES);                                    \
            _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                                \
                float a = w[m * sm];                                                             \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) sum[m][v] += spread(a) * x[v]; \
                if (H) rest[m] += (a - (half){0}) * y;                                           \
            }                                                                                    \
        }                                                                                        \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                  \
                store(out + m * out_row + v * LANES, sum[m][v]);                                 \
            if (H) *(loose_half *)(out + m * out_row + V * LANES) = rest[m];                     \
        }                                                                                        \
    }
typedef void matrix(const float *, i64, i64, const float *, i64, i64, float *, i64);
#define MATRICES(M)                                                                              \
    MATRIX(M, 0, 1) MATRIX(M, 1, 0) MATRIX(M, 1, 1) MATRIX(M, 2, 0) MATRIX(M, 2, 1) MATRIX(M, 3, 0)
#define BY_HALVES(M)                                                                             \
    {matrix_##M##_0_1, matrix_##M##_1_0, matrix_##M##_1_1,                                       \
     matrix_##M##_2_0, matrix_##M##_2_1, matrix_##M##_3_0}
MATRICES(1) MATRICES(2) MATRICES(4)
#if TALLEST == 8
MATRICES(8)
static matrix *const matrices[4][6] = {BY_HALVES(1), BY_HALVES(2), BY_HALVES(4), BY_HALVES(8)};
#else
static matrix *const matrices[3][6] = {BY_HALVES(1), BY_HALVES(2), BY_HALVES(4)};
#endif

/* the same for all x of a row and any number of channels */
static void multiply(const float *w, i64 sm, i64 sk, const float *in, i64 in_row, i64 count, i64 length,
                     float *out, i64 out_row, i64 channels)
{
    i64 halves = (length + LANES / 2 - 1) / (LANES / 2), parts = (halves + 5) / 6;
    for (i64 part = 0; part < parts; part++) {
        i64 from = halves * part / parts, to = halves * (part + 1) / parts, x = from * (LANES / 2);
        for (i64 c = 0; c < channels;) {
            int b = block(channels - c, TALLEST);
            matrices[b][to - from - 1](w + c * sm, sm, sk, in + x, in_row, count, out + c * out_row + x,
                                       out_row);
            c += 1 << b;
        }
    }
}
