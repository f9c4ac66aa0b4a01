/* Products of small matrices: c[m][n] = base[m][n] + sum over k of a[m][k] * b[k][n].
 *
 * Rows of b and c lie one value after another; a may lie in any order. A strip of b, a few vectors
 * wide, stays in the nearest cache while all of a goes by. */
#pragma once
#include "functions.h"

typedef struct { const float *data; i64 row, column; } matrix; /* strides in floats */

#define STRIP 3     /* vectors of a strip */
#define DEEPEST 128 /* rows of a strip: 24 KB with the widest vectors */

#define PRODUCT(M, V)                                                                           \
    static void product_##M##_##V(matrix a, const float *b, i64 b_row, i64 depth, float *c,     \
                                  i64 c_row, const float *base, i64 base_row, i64 last)         \
    {                                                                                           \
        vec sum[M][V];                                                                          \
        const float *p = a.data;                                                                \
        i64 row = a.row, column = a.column;                                                     \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                 \
                sum[m][v] = !base ? (vec){0}                                                    \
                            : v < V - 1 || last == LANES                                        \
                                ? load(base + m * base_row + v * LANES)                         \
                                : load_first(base + m * base_row + v * LANES, last);            \
        for (i64 k = 0; k < depth; k++, p += column, b += b_row) {                              \
            vec x[V];                                                                           \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                 \
            {                                                                                   \
                x[v] = load(b + v * LANES);                                                     \
                HOLD(x[v]);                                                                     \
            }                                                                                   \
            _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                               \
                vec y = spread(p[m * row]);                                                     \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) sum[m][v] += y * x[v];      \
            }                                                                                   \
        }                                                                                       \
        _Pragma("GCC unroll 8") for (int m = 0; m < M; m++)                                     \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++)                                 \
                if (v < V - 1 || last == LANES)                                                 \
                    store(c + m * c_row + v * LANES, sum[m][v]);                                \
                else                                                                            \
                    put_first(c + m * c_row + v * LANES, sum[m][v], last);                      \
    }
typedef void product(matrix, const float *, i64, i64, float *, i64, const float *, i64, i64);

#define PRODUCTS(M) PRODUCT(M, 1) PRODUCT(M, 2) PRODUCT(M, 3)
PRODUCTS(1) PRODUCTS(2) PRODUCTS(4)
#if TALLEST == 8
PRODUCTS(8)
static product *const products[4][3] = {{product_1_1, product_1_2, product_1_3},
                                        {product_2_1, product_2_2, product_2_3},
                                        {product_4_1, product_4_2, product_4_3},
                                        {product_8_1, product_8_2, product_8_3}};
#else
static product *const products[3][3] = {{product_1_1, product_1_2, product_1_3},
                                        {product_2_1, product_2_2, product_2_3},
                                        {product_4_1, product_4_2, product_4_3}};
#endif

/* LANES x LANES values, transposed: to[j][i] = from[i][j] */
INLINE void turn_square(const float *from, i64 row, float *to, i64 to_row)
{
#if LANES == 16 && defined(__AVX512F__)
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from + i * row);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d x = (__m512d)t[i + j], y = (__m512d)t[i + j + 2];
            r[i + 2 * j] = (__m512)_mm512_unpacklo_pd(x, y);
            r[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(x, y);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_ps(to + j * to_row, _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88));
        _mm512_storeu_ps(to + (j + 8) * to_row, _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd));
    }
#else
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LANES; i++) to[j * to_row + i] = from[i * row + j];
#endif
}

/* `rows` x `width` values of b as rows of whole vectors, with zeros beyond the width */
static void pack_strip(matrix b, i64 rows, i64 width, float *to, i64 to_row)
{
    i64 k = 0, whole = width / LANES * LANES;
    if (b.row == 1)
        for (; k + LANES <= rows; k += LANES)
            for (i64 n = 0; n < whole; n += LANES)
                turn_square(b.data + k + n * b.column, b.column, to + k * to_row + n, to_row);
    for (i64 r = 0; r < rows; r++) {
        i64 n = r < k ? whole : 0;
        for (; n < width; n++) to[r * to_row + n] = b.data[r * b.row + n * b.column];
        for (; n < to_row; n++) to[r * to_row + n] = 0;
    }
}

/* base: 0, or what is added: rows of it lie `base_row` apart, all the same one if that is 0 */
static void multiply(matrix a, matrix b, i64 rows, i64 depth, i64 width, float *c, i64 c_row,
                     const float *base, i64 base_row)
{
    float strip[DEEPEST * STRIP * LANES] __attribute__((aligned(64)));
    i64 n = (width + LANES - 1) / LANES, parts = (n + STRIP - 1) / STRIP;
    for (i64 part = 0; part < parts; part++) {
        i64 from = n * part / parts, vectors = n * (part + 1) / parts - from;
        i64 here = (width - from * LANES < vectors * LANES) ? width - from * LANES : vectors * LANES;
        i64 last = here - (vectors - 1) * LANES;
        i64 pieces = (depth + DEEPEST - 1) / DEEPEST;
        for (i64 piece = 0; piece < pieces; piece++) {
            i64 k = depth * piece / pieces, deep = depth * (piece + 1) / pieces - k;
            matrix rest = {b.data + k * b.row + from * LANES * b.column, b.row, b.column};
            const float *near = rest.data;
            i64 near_row = b.row;
            if (b.column != 1 || last != LANES) {
                near = strip, near_row = vectors * LANES;
                pack_strip(rest, deep, here, strip, near_row);
            }
            const float *above = piece ? c + from * LANES : base ? base + from * LANES : 0;
            i64 above_row = piece ? c_row : base_row;
            for (i64 m = 0; m < rows;) {
                i64 left = rows - m;
                int b2 = left >= 8 && TALLEST == 8 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;
                matrix part_a = {a.data + m * a.row + k * a.column, a.row, a.column};
                products[b2][vectors - 1](part_a, near, near_row, deep, c + m * c_row + from * LANES,
                                          c_row, above ? above + m * above_row : 0, above_row, last);
                m += 1 << b2;
            }
        }
        /* nothing to sum */
        if (!depth)
            for (i64 m = 0; m < rows; m++)
                for (i64 j = 0; j < here; j++)
                    c[m * c_row + from * LANES + j] = base ? base[m * base_row + from * LANES + j] : 0;
    }
}
