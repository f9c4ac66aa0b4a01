/* Convolution: out[c][row][x] = base[c][row][x] + bias[c] + sum over k of weight[c][k] *
 * in[offset[k] + row][x]; base and bias may be 0. */
#pragma once
#include "types.h"

#define TILE(M, V)                                                                              \
    static void tile_##M##_##V(const float *in, const i64 *offsets, i64 count, const float *w,  \
                               float *out, i64 plane, i64 last, const float *base, i64 bases,   \
                               const float *bias)                                               \
    {                                                                                           \
        vec sum[M][V];                                                                          \
        for (int m = 0; m < M; m++)                                                             \
            for (int v = 0; v < V; v++)                                                         \
                sum[m][v] = (base ? load(base + m * bases + v * LANES) : (vec){0}) +            \
                            (bias ? spread(bias[m]) : (vec){0});                                \
        for (i64 k = 0; k < count; k++, w += M) {                                               \
            const float *p = in + offsets[k];                                                   \
            vec x[V];                                                                           \
            _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) x[v] = load(p + v * LANES);     \
            _Pragma("GCC unroll 8") for (int m = 0; m < M; m++) {                               \
                vec b = spread(w[m]);                                                           \
                _Pragma("GCC unroll 8") for (int v = 0; v < V; v++) sum[m][v] += b * x[v];      \
            }                                                                                   \
        }                                                                                       \
        for (int m = 0; m < M; m++)                                                             \
            for (int v = 0; v < V; v++)                                                         \
                store_first(out + m * plane + v * LANES, sum[m][v], v < V - 1 ? LANES : last);  \
    }
typedef void tile(const float *, const i64 *, i64, const float *, float *, i64, i64, const float *,
                  i64, const float *);
#define TILES(M) TILE(M, 1) TILE(M, 2) TILE(M, 3)
TILES(1) TILES(2) TILES(4)
#if WIDEST == 5
TILE(1, 4) TILE(1, 5) TILE(2, 4) TILE(2, 5) TILE(4, 4) TILE(4, 5) TILES(8)
static tile *const tiles[4][5] = {{tile_1_1, tile_1_2, tile_1_3, tile_1_4, tile_1_5},
                                  {tile_2_1, tile_2_2, tile_2_3, tile_2_4, tile_2_5},
                                  {tile_4_1, tile_4_2, tile_4_3, tile_4_4, tile_4_5},
                                  {tile_8_1, tile_8_2, tile_8_3}};
#else
static tile *const tiles[3][3] = {{tile_1_1, tile_1_2, tile_1_3},
                                  {tile_2_1, tile_2_2, tile_2_3},
                                  {tile_4_1, tile_4_2, tile_4_3}};
#endif

static i64 vectors(i64 length) { return (length + LANES - 1) / LANES; }
static i64 tallest(i64 length) { return vectors(length) <= 3 ? TALLEST : 4; }
static int block(i64 left, i64 most) /* log2 of how many channels are computed together */
{
    return left >= 8 && most >= 8 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;
}

static void convolve_rows(const float *in, i64 in_row, const i64 *offsets, i64 count,
                          const float *packed, float *out, i64 plane, i64 out_row, i64 rows,
                          i64 length, i64 channels, const view *base, const float *bias)
{
    i64 n = vectors(length), parts = (n + WIDEST - 1) / WIDEST, most = tallest(length);
    for (i64 c = 0; c < channels;) {
        int b = block(channels - c, most);
        for (i64 r = 0; r < rows; r++)
            for (i64 part = 0; part < parts; part++) {
                i64 from = n * part / parts, to = n * (part + 1) / parts;
                i64 last = to == n ? length - (n - 1) * LANES : LANES;
                tiles[b][to - from - 1](in + r * in_row + from * LANES, offsets, count,
                                        packed + c * count,
                                        out + c * plane + r * out_row + from * LANES, plane, last,
                                        base ? base->data + c * base->plane + r * base->row +
                                                   from * LANES
                                             : 0,
                                        base ? base->plane : 0, bias ? bias + c : 0);
            }
        c += 1 << b;
    }
}

/* The larger one, image or filters, is read once; the other one stays in the cache. */
static void convolve(const float *in, i64 in_row, const i64 *offsets, i64 count, const float *packed,
                     float *out, i64 plane, i64 out_row, i64 rows, i64 length, i64 channels,
                     i64 image, const view *base, const float *bias)
{
    i64 strip = image > count * channels ? 1 : rows;
    for (i64 r = 0; r < rows; r += strip) {
        view here = base ? *base : (view){0, 0, 0};
        if (base) here.data += r * here.row;
        convolve_rows(in + r * in_row, in_row, offsets, count, packed, out + r * out_row, plane,
                      out_row, strip, length, channels, base ? &here : 0, bias);
    }
}

/* weights[c][k] in the order in which tiles read them; k = inner x taps */
INLINE void pack_block(float *to, const float *w, i64 m, i64 sc, i64 inner, i64 si,
                       const i64 *taps, i64 count, float scale)
{
    for (i64 i = 0; i < inner; i++, w += si)
        for (i64 t = 0; t < count; t++, to += m)
            for (i64 j = 0; j < m; j++) to[j] = scale * w[taps[t] + j * sc];
}

static void pack(float *packed, const float *w, i64 channels, i64 sc, i64 inner, i64 si,
                 const i64 *taps, i64 count, i64 most, float scale)
{
    for (i64 c = 0; c < channels;) {
        int b = block(channels - c, most);
        float *to = packed + c * inner * count;
        const float *from = w + c * sc;
        if (b == 3 && sc == 1)
            pack_block(to, from, 8, 1, inner, si, taps, count, scale);
        else if (b == 3)
            pack_block(to, from, 8, sc, inner, si, taps, count, scale);
        else if (b == 2 && sc == 1)
            pack_block(to, from, 4, 1, inner, si, taps, count, scale);
        else if (b == 2)
            pack_block(to, from, 4, sc, inner, si, taps, count, scale);
        else
            pack_block(to, from, 1 << b, sc, inner, si, taps, count, scale);
        c += 1 << b;
    }
}
