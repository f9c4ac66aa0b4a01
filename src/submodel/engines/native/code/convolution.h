/* A convolution and its gradients. With a stride, its input is split into columns by remainder. */
#pragma once
#include "linear.h"
#include "winograd.h"

typedef struct { const float *data; i64 plane, row; } source;

static i64 quotient(i64 width, i64 stride) { return (width + stride - 1) / stride; }

/* rows of one remainder, and all of a channel, after `split` */
static i64 narrow_row(const op *o, i64 n) { return aligned(quotient(o->w + 2 * o->pad, o->stride) * n); }
static i64 phase_size(const op *o, i64 n) { return (o->h + 2 * o->pad) * narrow_row(o, n); }

static source split(const op *o, i64 n, float *in, float *room)
{
    view x = view_of(in, o->h, o->w, o->pad, n);
    i64 s = o->stride, width = o->w + 2 * o->pad;
    if (s == 1) return (source){x.data, x.plane, x.row};
    i64 narrow = narrow_row(o, n), phase = phase_size(o, n);
    char columns[64] = {0}, lines[64] = {0};
    for (i64 k = 0; k < o->kw; k++) columns[(k - o->edge + o->pad) % s] = 1;
    for (i64 k = 0; k < o->kh; k++) lines[(k - o->edge + o->pad) % s] = 1;
    for (i64 c = 0; c < o->c; c++)
        for (i64 b = 0; b < s; b++) {
            if (!columns[b]) continue;
            float *to = room + (c * s + b) * phase;
            for (i64 r = 0; r < o->h + 2 * o->pad; r++) {
                if (!lines[r % s]) continue;
                const float *line = x.data + c * x.plane + (r - o->pad) * x.row - o->pad * n;
                float *t = to + r * narrow; /* a vector too many: the next one writes over it */
                for (i64 q = b; q < width; q += s, t += n)
                    for (i64 i = 0; i < n; i += LANES) store(t + i, load(line + q * n + i));
            }
        }
    return (source){room, s * phase, narrow * s};
}

/* where tap (y, x) begins, from the data of a channel */
static i64 tap_offset(const op *o, i64 n, i64 row_size, i64 y, i64 x)
{
    i64 s = o->stride, row = y - o->edge, column = x - o->edge;
    if (s == 1) return row * row_size + column * n;
    row += o->pad, column += o->pad;
    return column % s * phase_size(o, n) + row * narrow_row(o, n) + column / s * n;
}

static void fill_offsets(const op *o, i64 n, source from, i64 *offsets)
{
    for (i64 c = 0; c < o->c; c++)
        for (i64 y = 0; y < o->kh; y++)
            for (i64 x = 0; x < o->kw; x++)
                *offsets++ = c * from.plane + tap_offset(o, n, from.row, y, x);
}

static void conv_forward(const op *o, const plan *p, const tensor *tensors, i64 client, float *act,
                         float *scratch)
{
    i64 n = p->batch, taps = o->kh * o->kw, *offsets = (i64 *)(scratch + p->offsets);
    const tensor *w = tensors + o->weight;
    view base = view_of(act + o->in2, o->oh, o->ow, o->pad2, n);
    const float *bias = 0;
    float biases[o->bias < 0 ? 1 : o->oc];
    if (o->bias >= 0) {
        const float *b = tensors[o->bias].value + client * tensors[o->bias].client;
        for (i64 c = 0; c < o->oc; c++) biases[c] = (float)o->scale * b[c];
        bias = biases;
    }
    if (o->by_tiles) {
        forward_by_tiles(o, p, w, client, act, scratch, o->in2 < 0 ? 0 : &base, bias);
        return;
    }
    if (is_linear(o, w)) {
        linear_forward(o, n, w->value + client * w->client, w->so, act, bias, scratch + p->turns);
        return;
    }
    float *packed = scratch + p->filters;
    source from = split(o, n, act + o->in, scratch + p->phases);
    view to = view_of(act + o->out, o->oh, o->ow, o->opad, n);
    i64 steps[taps];
    for (i64 t = 0; t < taps; t++) steps[t] = t * w->sk;
    pack(packed, w->value + client * w->client, o->oc, w->so, o->c, w->si, steps, taps,
         tallest(o->ow * n), (float)o->scale);
    fill_offsets(o, n, from, offsets);
    convolve(from.data, from.row, offsets, o->c * taps, packed, to.data, to.plane, to.row, o->oh,
             o->ow * n, o->oc, o->c * from.plane, o->in2 < 0 ? 0 : &base, bias);
}

/* d[c][k] over some rows, onto sums of vectors, [block of channels][k][channel in it] */
static void add_dots(const op *o, i64 length, source from, view g, i64 begin, i64 end,
                     const i64 *offsets, float *room)
{
    i64 all = o->c * o->kh * o->kw, full = length / LANES * LANES;
    i64 strip = STRIP / (4 * length); /* rows of four channels that stay in the nearest cache */
    if (strip < 1) strip = 1;
    for (i64 c = 0; c < o->oc;) {
        int b = block(o->oc - c, 4);
        for (i64 r = begin; r < end; r += strip) {
            i64 rows = end - r < strip ? end - r : strip;
            const float *gr = g.data + c * g.plane + r * g.row, *in = from.data + r * from.row;
            for (i64 k = 0; k < all;) {
                i64 q = dots_of(all - k);
                float *sums = room + (c * all + (k << b)) * LANES;
                dots[b][q / 3](gr, g.plane, g.row, in, from.row, offsets + k, rows, full, sums);
                if (full < length)
                    rests[b][q / 3](gr + full, g.plane, g.row, in + full, from.row, offsets + k,
                                    rows, length - full, sums);
                k += q;
            }
        }
        c += 1 << b;
    }
}

static void gradient_by_dots(const op *o, i64 n, const tensor *w, float *d, source from, view g,
                             i64 *offsets, float *room)
{
    i64 taps = o->kh * o->kw, all = o->c * taps;
    i64 strip = NEAR / (o->c * from.row + o->oc * g.row); /* rows of both that stay in a core's */
    if (strip < 1) strip = 1;
    memset(room, 0, sizeof(float) * o->oc * all * LANES);
    fill_offsets(o, n, from, offsets);
    for (i64 r = 0; r < o->oh; r += strip)
        add_dots(o, o->ow * n, from, g, r, o->oh - r < strip ? o->oh : r + strip, offsets, room);
    const float *sums = room;
    for (i64 c = 0; c < o->oc;) {
        int b = block(o->oc - c, 4);
        for (i64 k = 0; k < all;) {
            i64 q = dots_of(all - k);
            for (i64 m = 0; m < 1 << b; m++)
                for (i64 j = 0; j < q; j++, sums += LANES)
                    d[(c + m) * w->so + (k + j) / taps * w->si + (k + j) % taps * w->sk] =
                        (float)o->scale * total(load(sums));
            k += q;
        }
        c += 1 << b;
    }
}

/* every position's channels one after another: of a channel's frame and inside, or as split */
static i64 turn(const op *o, i64 n, source from, i64 wide, float *turned)
{
    i64 s = o->stride, whole = (o->w + 2 * o->pad) * n;
    i64 rows = s == 1 ? o->h + 2 * o->pad : 1, length = s == 1 ? whole : from.plane;
    const float *start = s == 1 ? from.data - o->pad * (from.row + n) : from.data;
    for (i64 c0 = 0; c0 < wide; c0 += LANES)
        for (i64 r = 0; r < rows; r++)
            for (i64 x = 0; x < length; x++) {
                const float *f = start + r * from.row + x;
                float *t = turned + (r * length + x) * wide;
                for (i64 c = c0; c < c0 + LANES; c++) t[c] = c < o->c ? f[c * from.plane] : 0;
            }
    return s == 1 ? whole : from.row;
}

static void gradient_by_products(const op *o, i64 n, const tensor *w, float *d, source from, view g,
                                 float *turned)
{
    i64 wide = aligned(o->c), length = o->ow * n, row = turn(o, n, from, wide, turned);
    i64 start = o->stride == 1 ? o->pad * (row + n) : 0;
    float part[2 * TALLEST * LANES], scale = (float)o->scale;
    for (i64 t = 0; t < o->kh * o->kw; t++) {
        const float *tap = turned + (start + tap_offset(o, n, row, t / o->kw, t % o->kw)) * wide;
        for (i64 i = 0; i < o->c;) {
            i64 v = o->c - i > LANES ? 2 : 1;
            for (i64 c = 0; c < o->oc;) {
                int b = block(o->oc - c, TALLEST);
                outers[b][v - 1](g.data + c * g.plane, g.plane, g.row, tap + i, row, wide, o->oh,
                                 length, part);
                for (i64 m = 0; m < 1 << b; m++) {
                    float *to = d + (c + m) * w->so + i * w->si + t * w->sk;
                    const float *sums = part + m * v * LANES;
                    if (w->si == 1 && i + v * LANES <= o->c)
                        for (i64 j = 0; j < v * LANES; j += LANES)
                            store(to + j, scale * load(sums + j));
                    else
                        for (i64 j = 0; j < v * LANES && i + j < o->c; j++)
                            to[j * w->si] = scale * sums[j];
                }
                c += 1 << b;
            }
            i += v * LANES;
        }
    }
}

static void filter_gradient(const op *o, const plan *p, const tensor *w, i64 client, float *act,
                            view g, float *scratch)
{
    float *d = w->gradient + client * w->client, *room = scratch + p->turns;
    if (is_linear(o, w)) {
        linear_filter_gradient(o, p->batch, act + o->in, g.data, d, w->so, room);
        return;
    }
    source from = split(o, p->batch, act + o->in, scratch + p->phases);
    if (o->by_tiles) {
        i64 wide = aligned(o->c), row = turn(o, p->batch, from, wide, room);
        filter_gradient_by_tiles(o, p->batch, w, d, room, row, wide, g,
                                 room + wide * (o->h + 2 * o->pad) * row);
    } else if (uses_outer(o, p->batch))
        gradient_by_products(o, p->batch, w, d, from, g, room);
    else
        gradient_by_dots(o, p->batch, w, d, from, g, (i64 *)(scratch + p->offsets), room);
}

/* Rows and columns of one remainder by the stride are a convolution of the gradient by themselves. */
static void input_gradient(const op *o, const plan *p, const tensor *w, i64 client, view g,
                           float *grads, float *scratch)
{
    if (is_linear(o, w)) {
        linear_input_gradient(o, p->batch, w->value + client * w->client, w->so, g.data,
                              grads + o->din, scratch + p->turns);
        return;
    }
    if (o->by_tiles) {
        input_gradient_by_tiles(o, p, w, client, g, grads, scratch);
        return;
    }
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
                    places[count++] = row / s * g.row + column / s * n;
                }
            for (i64 c = 0, k = 0; c < o->oc; c++)
                for (i64 t = 0; t < count; t++) offsets[k++] = c * g.plane + places[t];
            pack(packed, weights, o->c, w->si, o->oc, w->so, taps, count, tallest(columns * n),
                 (float)o->scale);
            if (s == 1) {
                convolve(g.data, g.row, offsets, o->oc * count, packed, to.data, to.plane, to.row,
                         rows, columns * n, o->c, o->oc * g.plane, o->add_in ? &to : 0, 0);
                continue;
            }
            if (count)
                convolve(g.data, g.row, offsets, o->oc * count, packed, room, rows * columns * n,
                         columns * n, rows, columns * n, o->c, o->oc * g.plane, 0, 0);
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
