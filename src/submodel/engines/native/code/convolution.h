/* A convolution and its gradients. With a stride, its input is split into columns by remainder. */
#pragma once
#include "products.h"

typedef struct { const float *data; i64 plane, row; } source;

static i64 quotient(i64 width, i64 stride) { return (width + stride - 1) / stride; }

static source split(const op *o, i64 n, const float *in, float *room)
{
    i64 s = o->stride, rows = o->h + 2 * o->pad, width = o->w + 2 * o->pad;
    source from = {in, rows * width * n, width * n};
    if (s == 1) return from;
    i64 narrow = quotient(width, s), phase = rows * narrow * n;
    char columns[64] = {0}, lines[64] = {0};
    for (i64 k = 0; k < o->kw; k++) columns[(k - o->edge + o->pad) % s] = 1;
    for (i64 k = 0; k < o->kh; k++) lines[(k - o->edge + o->pad) % s] = 1;
    for (i64 c = 0; c < o->c; c++)
        for (i64 b = 0; b < s; b++) {
            if (!columns[b]) continue;
            float *to = room + (c * s + b) * phase;
            for (i64 r = 0; r < rows; r++) {
                if (!lines[r % s]) continue;
                const float *line = in + c * from.plane + r * width * n;
                float *t = to + r * narrow * n; /* a vector too many: the next one writes over it */
                for (i64 x = b; x < width; x += s, t += n)
                    for (i64 i = 0; i < n; i += LANES) store(t + i, load(line + x * n + i));
            }
        }
    return (source){room, s * phase, narrow * n * s};
}

/* where tap (y, x) begins, from the start of a channel */
static i64 tap_offset(const op *o, i64 n, i64 y, i64 x)
{
    i64 s = o->stride, width = o->w + 2 * o->pad, rows = o->h + 2 * o->pad;
    i64 row = y - o->edge + o->pad, column = x - o->edge + o->pad;
    if (s == 1) return (row * width + column) * n;
    i64 narrow = quotient(width, s);
    return (column % s * rows * narrow + row * narrow + column / s) * n;
}

static void fill_offsets(const op *o, i64 n, i64 plane, i64 *offsets)
{
    for (i64 c = 0; c < o->c; c++)
        for (i64 y = 0; y < o->kh; y++)
            for (i64 x = 0; x < o->kw; x++) *offsets++ = c * plane + tap_offset(o, n, y, x);
}

static void conv_forward(const op *o, const plan *p, const tensor *tensors, i64 client, float *act,
                         float *scratch)
{
    i64 n = p->batch, taps = o->kh * o->kw, *offsets = (i64 *)(scratch + p->offsets);
    const tensor *w = tensors + o->weight;
    float *packed = scratch + p->filters;
    source from = split(o, n, act + o->in, scratch + p->phases);
    view to = view_of(act + o->out, o->oh, o->ow, o->opad, n);
    i64 steps[taps];
    for (i64 t = 0; t < taps; t++) steps[t] = t * w->sk;
    pack(packed, w->value + client * w->client, o->oc, w->so, o->c, w->si, steps, taps,
         tallest(o->ow * n), (float)o->scale);
    fill_offsets(o, n, from.plane, offsets);
    const float *bias = 0;
    float biases[o->bias < 0 ? 1 : o->oc];
    if (o->bias >= 0) {
        const float *b = tensors[o->bias].value + client * tensors[o->bias].client;
        for (i64 c = 0; c < o->oc; c++) biases[c] = (float)o->scale * b[c];
        bias = biases;
    }
    convolve(from.data, from.row, offsets, o->c * taps, packed, to.data, to.plane, to.row, o->oh,
             o->ow * n, o->oc, 0, bias);
}

static void filter_gradient(const op *o, const plan *p, const tensor *w, i64 client,
                            const float *act, view g, float *scratch)
{
    i64 n = p->batch, taps = o->kh * o->kw, length = o->ow * n, all = o->c * taps;
    i64 *offsets = (i64 *)(scratch + p->offsets);
    float *d = w->gradient + client * w->client, scale = (float)o->scale;
    source from = split(o, n, act + o->in, scratch + p->phases);
    float part[2 * TALLEST * LANES], *room = scratch + p->turns;
    if (!uses_outer(o, n)) {
        fill_offsets(o, n, from.plane, offsets);
        i64 full = length / LANES * LANES, strip = STRIP / (4 * length); /* rows of four channels that stay in the nearest cache */
        if (strip < 1) strip = 1;
        for (i64 c = 0; c < o->oc;) {
            int b = block(o->oc - c, 4);
            memset(room, 0, sizeof(float) * (all << b) * LANES);
            for (i64 r = 0; r < o->oh; r += strip) {
                i64 rows = o->oh - r < strip ? o->oh - r : strip;
                const float *gr = g.data + c * g.plane + r * g.row, *in = from.data + r * from.row;
                for (i64 k = 0; k < all;) {
                    i64 q = dots_of(all - k);
                    float *sums = room + (k << b) * LANES;
                    dots[b][q / 3](gr, g.plane, g.row, in, from.row, offsets + k, rows, full, sums);
                    if (full < length)
                        rests[b][q / 3](gr + full, g.plane, g.row, in + full, from.row, offsets + k,
                                        rows, length - full, sums);
                    k += q;
                }
            }
            for (i64 k = 0; k < all;) {
                i64 q = dots_of(all - k);
                const float *sums = room + (k << b) * LANES;
                for (i64 m = 0; m < 1 << b; m++)
                    for (i64 j = 0; j < q; j++, sums += LANES)
                        d[(c + m) * w->so + (k + j) / taps * w->si + (k + j) % taps * w->sk] =
                            scale * total(load(sums));
                k += q;
            }
            c += 1 << b;
        }
        return;
    }
    i64 wide = vectors(o->c) * LANES;
    float *turned = room;
    for (i64 c0 = 0; c0 < wide; c0 += LANES)
        for (i64 x = 0; x < from.plane; x++)
            for (i64 c = c0; c < c0 + LANES; c++)
                turned[x * wide + c] = c < o->c ? from.data[c * from.plane + x] : 0;
    for (i64 t = 0; t < taps; t++) {
        const float *tap = turned + tap_offset(o, n, t / o->kw, t % o->kw) * wide;
        for (i64 i = 0; i < wide;) {
            i64 v = wide - i >= 2 * LANES ? 2 : 1;
            for (i64 c = 0; c < o->oc;) {
                int b = block(o->oc - c, TALLEST);
                outers[b][v - 1](g.data + c * g.plane, g.plane, g.row, tap + i, from.row, wide,
                                 o->oh, length, part);
                for (i64 m = 0; m < 1 << b; m++)
                    for (i64 j = 0; j < v * LANES && i + j < o->c; j++)
                        d[(c + m) * w->so + (i + j) * w->si + t * w->sk] =
                            scale * part[m * v * LANES + j];
                c += 1 << b;
            }
            i += v * LANES;
        }
    }
}

/* Rows and columns of one remainder by the stride are a convolution of the gradient by themselves. */
static void input_gradient(const op *o, const plan *p, const tensor *w, i64 client, view g,
                           const float *dout, float *grads, float *scratch)
{
    i64 n = p->batch, s = o->stride, *offsets = (i64 *)(scratch + p->offsets);
    float *packed = scratch + p->filters, *room = scratch + p->phases;
    const float *weights = w->value + client * w->client;
    view to = view_of(grads + o->din, o->h, o->w, o->dpad, n);
    mask whole = first(LANES), tail = first((n - 1) % LANES + 1);
    for (i64 a = 0; a < s; a++)
        for (i64 b = 0; b < s; b++) {
            i64 rows = quotient(o->h - a, s), columns = quotient(o->w - b, s), count = 0;
            if (rows <= 0 || columns <= 0) continue;
            i64 taps[o->kh * o->kw], places[o->kh * o->kw];
            for (i64 y = 0; y < o->kh; y++)
                for (i64 x = 0; x < o->kw; x++) {
                    i64 row = a + o->edge - y, column = b + o->edge - x;
                    if (row % s || column % s) continue;
                    taps[count] = (y * o->kw + x) * w->sk;
                    places[count++] = (row / s + o->dopad) * g.row + (column / s + o->dopad) * n;
                }
            for (i64 c = 0, k = 0; c < o->oc; c++)
                for (i64 t = 0; t < count; t++) offsets[k++] = c * g.plane + places[t];
            pack(packed, weights, o->c, w->si, o->oc, w->so, taps, count, tallest(columns * n),
                 (float)o->scale);
            if (s == 1) {
                convolve(dout, g.row, offsets, o->oc * count, packed, to.data, to.plane, to.row,
                         rows, columns * n, o->c, (int)o->add_in, 0);
                continue;
            }
            if (count)
                convolve(dout, g.row, offsets, o->oc * count, packed, room, rows * columns * n,
                         columns * n, rows, columns * n, o->c, 0, 0);
            else if (o->add_in)
                continue;
            for (i64 c = 0; c < o->c; c++)
                for (i64 r = 0; r < rows; r++) {
                    float *d = to.data + c * to.plane + (r * s + a) * to.row + b * n;
                    const float *f = room + (c * rows + r) * columns * n;
                    for (i64 x = 0; x < columns; x++, d += s * n, f += n)
                        for (i64 i = 0; i < n; i += LANES) {
                            vec v = count ? load(f + i) : (vec){0};
                            if (o->add_in) v += load(d + i);
                            store_masked(d + i, v, n - i >= LANES ? whole : tail);
                        }
                }
        }
}
