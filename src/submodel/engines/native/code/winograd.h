/* Convolutions by the transforms of transforms.h: matrix products, place by place. */
#pragma once
#include "matrices.h"
#include "transforms.h"

/* A convolution of `count` channels of `x`, from its first tile's corner on, to `channels` of `y`;
 * weights of a place lie `sm` and `sk` apart for the next output and input. */
static void convolve_tiles(view x, i64 count, view y, i64 channels, i64 rows, i64 columns, i64 n,
                           const float *u, i64 place, i64 sm, i64 sk, int is_turned,
                           const view *base, const float *bias, float *room)
{
    static const int turned[4] = {3, 1, 2, 0};
    tiling t = tiling_of(rows, columns, count + channels, n);
    i64 in_place = place_size(count, t.length), out_place = place_size(channels, t.length);
    float *out = room + PLACES * in_place;
    for (i64 r = 0; r < t.down; r += t.strip) {
        i64 here = t.down - r < t.strip ? t.down - r : t.strip;
        transform_images(x, count, n, &t, r, here, room);
        for (int k = 0; k < PLACES; k++) {
            int from = is_turned ? 4 * turned[k / 4] + turned[k % 4] : k;
            multiply(u + from * place, sm, sk, room + k * in_place, t.length, count,
                     here * t.across * n, out + k * out_place, t.length, channels);
        }
        untransform(out, channels, n, &t, r, here, y, base, bias);
    }
}

static view corner(view x, i64 edge, i64 n)
{
    x.data -= edge * (x.row + n);
    return x;
}

static void forward_by_tiles(const op *o, const plan *p, const tensor *w, i64 client, float *act,
                             float *scratch, const view *base, const float *bias)
{
    i64 n = p->batch, wide = aligned(o->c);
    float *u = scratch + p->filters;
    transform_filters(o, w, w->value + client * w->client, wide, u);
    convolve_tiles(corner(view_of(act + o->in, o->h, o->w, o->pad, n), o->edge, n), o->c,
                   view_of(act + o->out, o->oh, o->ow, o->opad, n), o->oc, o->oh, o->ow, n, u,
                   filter_place(o->oc, wide), wide, 1, 0, base, bias, scratch + p->phases);
}

static void input_gradient_by_tiles(const op *o, const plan *p, const tensor *w, i64 client, view g,
                                    float *grads, float *scratch)
{
    i64 n = p->batch, wide = aligned(o->c);
    float *u = scratch + p->filters;
    view to = view_of(grads + o->din, o->h, o->w, o->dpad, n);
    transform_filters(o, w, w->value + client * w->client, wide, u);
    convolve_tiles(corner(g, 2 - o->edge, n), o->oc, to, o->c, o->h, o->w, n, u,
                   filter_place(o->oc, wide), 1, wide, 1, o->add_in ? &to : 0, 0, scratch + p->phases);
}

static void filter_gradient_by_tiles(const op *o, i64 n, const tensor *w, float *d, const float *turned,
                                     i64 row, i64 wide, view g, float *room)
{
    tiling t = tiling_of(o->oh, o->ow, wide + o->oc, n);
    i64 in_place = turned_place(&t, n, wide), out_place = place_size(o->oc, t.length);
    float *v = room, *m = v + PLACES * in_place, *du = m + PLACES * out_place;
    float part[2 * TALLEST * LANES];
    turned += (o->pad - o->edge) * (row + n) * wide;
    for (i64 r = 0; r < t.down; r += t.strip) {
        i64 here = t.down - r < t.strip ? t.down - r : t.strip;
        transform_turned(turned, row, wide, n, &t, r, here, v);
        spread_gradient(g, o->oc, n, &t, r, here, m);
        for (int k = 0; k < PLACES; k++)
            for (i64 i = 0; i < o->c;) {
                i64 vs = o->c - i > LANES ? 2 : 1;
                for (i64 c = 0; c < o->oc;) {
                    int b = block(o->oc - c, TALLEST);
                    outers[b][vs - 1](m + k * out_place + c * t.length, t.length, 0,
                                      v + k * in_place + i, 0, wide, 1, here * t.across * n, part);
                    for (i64 j = 0; j < 1 << b; j++)
                        for (i64 q = 0; q < vs; q++) {
                            float *to = du + k * filter_place(o->oc, wide) + (c + j) * wide + i + q * LANES;
                            vec sum = load(part + (j * vs + q) * LANES);
                            store(to, r ? load(to) + sum : sum);
                        }
                    c += 1 << b;
                }
                i += vs * LANES;
            }
    }
    untransform_filters(o, w, du, wide, d);
}
