/* Linear layers. Values are stored as [channel][example]; if few examples would leave vectors half
 * empty, vectors go along the inputs, with values transposed to [example][channel]. */
#pragma once
#include "matrices.h"

/* not if rows of filters end inside half a vector: kernels must not read past the end */
static int is_linear(const op *o, const tensor *w)
{
    return o->kh * o->kw * o->h * o->w * o->oh * o->ow == 1 && w->si == 1 && o->c % (LANES / 2) == 0 &&
           o->in2 < 0 && !(o->pad | o->opad | o->dpad | o->dopad);
}

static void turn_values(const float *from, i64 channels, i64 n, float *to)
{
    for (i64 i = 0; i < n; i++)
        for (i64 c = 0; c < channels; c++) to[i * channels + c] = from[c * n + i];
}

static void linear_forward(const op *o, i64 n, const float *weights, i64 so, float *act,
                           const float *bias, float *room)
{
    i64 row = aligned(n);
    float scale = (float)o->scale, *to = act + o->out;
    multiply(weights, so, 1, act + o->in, n, o->c, n, room, row, o->oc);
    for (i64 c = 0; c < o->oc; c++)
        for (i64 i = 0; i < n; i++) to[c * n + i] = scale * room[c * row + i] + (bias ? bias[c] : 0);
}

/* d[output][input] = sum over examples of g[output][example] x[example][input] */
static void linear_filter_gradient(const op *o, i64 n, const float *values, const float *g, float *d,
                                   i64 so, float *room)
{
    float scale = (float)o->scale, *turned = room + o->oc * n;
    for (i64 i = 0; i < o->oc * n; i++) room[i] = scale * g[i];
    turn_values(values, o->c, n, turned);
    multiply(room, n, 1, turned, o->c, n, o->c, d, so, o->oc);
}

/* d[input][example] = sum over outputs of w[output][input] g[output][example], transposed */
static void linear_input_gradient(const op *o, i64 n, const float *weights, i64 so, const float *g,
                                  float *d, float *room)
{
    float scale = (float)o->scale;
    multiply(g, 1, n, weights, so, o->oc, o->c, room, o->c, n);
    for (i64 c = 0; c < o->c; c++)
        for (i64 i = 0; i < n; i++) {
            float v = scale * room[i * o->c + c];
            d[c * n + i] = o->add_in ? d[c * n + i] + v : v;
        }
}
