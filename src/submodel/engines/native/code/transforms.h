/* Filters of 3 x 3 by Winograd's F(2 x 2, 3 x 3): 16 products instead of 36 for four outputs.
 *
 *   Y = A' [(G w G') . (B' x B)] A, summed over channels inside the brackets: for each of the 16
 * places a matrix product of [outputs][inputs] with [inputs][tiles x examples]. The gradient of the
 * input is such a convolution itself, by the turned filter: its transform is that of the filter with
 * places 0 and 3 exchanged. The gradient of the filter is G' [(A dY A') . (B' x B)] G.
 * Images of which the transforms would not stay in a core's cache are gone through in strips. */
#pragma once
#include "types.h"

#define PLACES 16
#define STRIP_FLOATS 131072 /* of all transforms of a strip; also in planning.py */

typedef struct { /* of the transforms of a strip: floats from a channel, and from a place, to the next */
    i64 across, down;         /* tiles in a row, rows of tiles */
    i64 strip;                /* rows of tiles that are transformed at once */
    i64 length;               /* tiles x examples of a whole strip, in whole half-vectors */
} tiling;

static tiling tiling_of(i64 rows, i64 columns, i64 channels, i64 n)
{
    tiling t = {columns / 2, rows / 2, 0, 0};
    t.strip = STRIP_FLOATS / (PLACES * channels * t.across * n);
    if (t.strip < 1) t.strip = 1;
    if (t.strip > t.down) t.strip = t.down;
    t.length = (t.strip * t.across * n + LANES / 2 - 1) / (LANES / 2) * (LANES / 2);
    return t;
}

/* Places must not be about a page apart: their rows would compete for the same cache lines. */
#define APART 144
static i64 filter_place(i64 outputs, i64 wide) { return outputs * wide + APART; }
static i64 turned_place(const tiling *t, i64 n, i64 wide)
{
    return t->strip * t->across * n * wide + APART;
}

/* a vector too many is written behind every row of `length`: the next row is written later */
static i64 place_size(i64 channels, i64 length) { return channels * length + APART; }

/* u[place][output][input], rows of `wide` */
static void transform_filters(const op *o, const tensor *w, const float *weights, i64 wide, float *u)
{
    float scale = (float)o->scale;
    i64 place = filter_place(o->oc, wide), full = w->si == 1 ? o->c / LANES * LANES : 0;
    for (i64 c = 0; c < o->oc; c++) {
        const float *f = weights + c * w->so;
        float *to = u + c * wide;
#define FILTER(TYPE, LOAD, STORE)                                                    \
    TYPE g[3][3], rows[4][3];                                                        \
    for (int k = 0; k < 9; k++) g[k / 3][k % 3] = scale * LOAD;                      \
    for (int x = 0; x < 3; x++) {                                                    \
        TYPE ends = (g[0][x] + g[2][x]) * 0.5f, middle = g[1][x] * 0.5f;             \
        rows[0][x] = g[0][x], rows[1][x] = ends + middle;                            \
        rows[2][x] = ends - middle, rows[3][x] = g[2][x];                            \
    }                                                                                \
    for (int y = 0; y < 4; y++) {                                                    \
        TYPE ends = (rows[y][0] + rows[y][2]) * 0.5f, middle = rows[y][1] * 0.5f;    \
        TYPE four[4] = {rows[y][0], ends + middle, ends - middle, rows[y][2]};       \
        for (int x = 0; x < 4; x++) STORE;                                           \
    }
        for (i64 i = 0; i < full; i += LANES) {
            FILTER(vec, load(f + i + k * w->sk), store(to + (4 * y + x) * place + i, four[x]))
        }
        for (i64 i = full; i < o->c; i++) {
            FILTER(float, f[i * w->si + k * w->sk], to[(4 * y + x) * place + i] = four[x])
        }
    }
}

INLINE void transform_tile(vec d[4][4]) /* B' d B */
{
    for (int x = 0; x < 4; x++) {
        vec a = d[0][x] - d[2][x], b = d[1][x] + d[2][x], c = d[2][x] - d[1][x], e = d[1][x] - d[3][x];
        d[0][x] = a, d[1][x] = b, d[2][x] = c, d[3][x] = e;
    }
    for (int y = 0; y < 4; y++) {
        vec a = d[y][0] - d[y][2], b = d[y][1] + d[y][2], c = d[y][2] - d[y][1], e = d[y][1] - d[y][3];
        d[y][0] = a, d[y][1] = b, d[y][2] = c, d[y][3] = e;
    }
}

/* v[place][channel][tile x example] of some rows of tiles; `x` begins at the first tile's corner */
static void transform_images(view x, i64 channels, i64 n, const tiling *t, i64 begin, i64 count, float *v)
{
    i64 place = place_size(channels, t->length);
    for (i64 c = 0; c < channels; c++) {
        float *to = v + c * t->length;
        for (i64 r = begin; r < begin + count; r++)
            for (i64 q = 0; q < t->across; q++, to += n)
                for (i64 i = 0; i < n; i += LANES) {
                    const float *from = x.data + c * x.plane + 2 * r * x.row + 2 * q * n + i;
                    vec d[4][4];
                    for (int a = 0; a < 4; a++)
                        for (int b = 0; b < 4; b++) d[a][b] = load(from + a * x.row + b * n);
                    transform_tile(d);
                    for (int k = 0; k < PLACES; k++) store(to + k * place + i, d[k / 4][k % 4]);
                }
    }
}

/* Y = A' m A, onto base and bias */
static void untransform(const float *m, i64 channels, i64 n, const tiling *t, i64 begin, i64 count,
                        view y, const view *base, const float *bias)
{
    i64 place = place_size(channels, t->length);
    mask whole = first(LANES), tail = first((n - 1) % LANES + 1);
    for (i64 c = 0; c < channels; c++) {
        const float *from = m + c * t->length;
        vec b = bias ? spread(bias[c]) : (vec){0};
        for (i64 r = begin; r < begin + count; r++)
            for (i64 q = 0; q < t->across; q++, from += n)
                for (i64 i = 0; i < n; i += LANES) {
                    vec rows[2][4];
                    for (int x = 0; x < 4; x++) {
                        const float *f = from + x * place + i;
                        vec s = load(f + 4 * place), d = load(f + 8 * place);
                        rows[0][x] = load(f) + s + d;
                        rows[1][x] = s - d - load(f + 12 * place);
                    }
                    for (int a = 0; a < 2; a++) {
                        vec s = rows[a][1], d = rows[a][2];
                        vec out[2] = {rows[a][0] + s + d, s - d - rows[a][3]};
                        for (int e = 0; e < 2; e++) {
                            i64 line = 2 * r + a, column = (2 * q + e) * n + i;
                            vec v = out[e] + b;
                            if (base) v += load(base->data + c * base->plane + line * base->row + column);
                            store_masked(y.data + c * y.plane + line * y.row + column, v,
                                         n - i >= LANES ? whole : tail);
                        }
                    }
                }
    }
}

/* v[place][tile x example][channel] of some rows of tiles, from an image turned so */
static void transform_turned(const float *image, i64 row, i64 wide, i64 n, const tiling *t, i64 begin,
                             i64 count, float *v)
{
    i64 place = turned_place(t, n, wide);
    for (i64 r = begin; r < begin + count; r++)
        for (i64 q = 0; q < t->across; q++)
            for (i64 i = 0; i < n; i++, v += wide)
                for (i64 c = 0; c < wide; c += LANES) {
                    const float *from = image + (2 * r * row + 2 * q * n + i) * wide + c;
                    vec d[4][4];
                    for (int a = 0; a < 4; a++)
                        for (int b = 0; b < 4; b++) d[a][b] = load(from + (a * row + b * n) * wide);
                    transform_tile(d);
                    for (int k = 0; k < PLACES; k++) store(v + k * place + c, d[k / 4][k % 4]);
                }
}

/* m[place][channel][tile x example] = A g A' */
static void spread_gradient(view g, i64 channels, i64 n, const tiling *t, i64 begin, i64 count, float *m)
{
    i64 place = place_size(channels, t->length);
    for (i64 c = 0; c < channels; c++) {
        float *to = m + c * t->length;
        for (i64 r = begin; r < begin + count; r++)
            for (i64 q = 0; q < t->across; q++, to += n)
                for (i64 i = 0; i < n; i += LANES) {
                    const float *from = g.data + c * g.plane + 2 * r * g.row + 2 * q * n + i;
                    vec rows[4][2];
                    for (int b = 0; b < 2; b++) {
                        vec x = load(from + b * n), y = load(from + g.row + b * n);
                        rows[0][b] = x, rows[1][b] = x + y, rows[2][b] = x - y, rows[3][b] = -y;
                    }
                    for (int a = 0; a < 4; a++) {
                        vec x = rows[a][0], y = rows[a][1];
                        store(to + 4 * a * place + i, x);
                        store(to + (4 * a + 1) * place + i, x + y);
                        store(to + (4 * a + 2) * place + i, x - y);
                        store(to + (4 * a + 3) * place + i, -y);
                    }
                }
    }
}

/* d = G' du G, where du is [place][output][input] */
static void untransform_filters(const op *o, const tensor *w, const float *du, i64 wide, float *d)
{
    float scale = (float)o->scale;
    i64 place = filter_place(o->oc, wide), full = w->si == 1 ? o->c / LANES * LANES : 0;
    for (i64 c = 0; c < o->oc; c++) {
        const float *f = du + c * wide;
        float *to = d + c * w->so;
#define UNFILTER(TYPE, LOAD, STORE)                                                         \
    TYPE rows[3][4];                                                                        \
    for (int x = 0; x < 4; x++) {                                                           \
        TYPE m[4];                                                                          \
        for (int y = 0; y < 4; y++) m[y] = LOAD;                                            \
        TYPE s = (m[1] + m[2]) * 0.5f;                                                      \
        rows[0][x] = m[0] + s, rows[1][x] = (m[1] - m[2]) * 0.5f, rows[2][x] = m[3] + s;    \
    }                                                                                       \
    for (int y = 0; y < 3; y++) {                                                           \
        TYPE *m = rows[y], s = (m[1] + m[2]) * 0.5f;                                        \
        TYPE three[3] = {m[0] + s, (m[1] - m[2]) * 0.5f, m[3] + s};                         \
        for (int x = 0; x < 3; x++) STORE;                                                  \
    }
        for (i64 i = 0; i < full; i += LANES) {
            UNFILTER(vec, load(f + (4 * y + x) * place + i),
                     store(to + i + (3 * y + x) * w->sk, scale * three[x]))
        }
        for (i64 i = full; i < o->c; i++) {
            UNFILTER(float, f[(4 * y + x) * place + i],
                     to[i * w->si + (3 * y + x) * w->sk] = scale * three[x])
        }
    }
}
