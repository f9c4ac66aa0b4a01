/* Layers that go value by value: over rows, or whole channels where there are no frames. */
#pragma once
#include "types.h"

typedef struct { i64 rows, length; } extent;

static extent extent_of(const op *o, i64 n, i64 frames)
{
    return frames ? (extent){o->h, o->w * n} : (extent){1, o->h * o->w * n};
}

static double sum_rows(const float *x, i64 row, extent e)
{
    vec sum[4] = {{0}};
    double rest = 0;
    for (i64 r = 0; r < e.rows; r++, x += row) {
        i64 i = 0;
        for (; i + 4 * LANES <= e.length; i += 4 * LANES)
            for (int j = 0; j < 4; j++) sum[j] += load(x + i + j * LANES);
        for (; i + LANES <= e.length; i += LANES) sum[0] += load(x + i);
        for (; i < e.length; i++) rest += x[i];
    }
    return rest + (double)total(sum[0] + sum[1]) + (double)total(sum[2] + sum[3]);
}

static double sum_squares(const float *x, i64 row, extent e, float mean)
{
    vec sum[4] = {{0}};
    double rest = 0;
    for (i64 r = 0; r < e.rows; r++, x += row) {
        i64 i = 0;
        for (; i + 4 * LANES <= e.length; i += 4 * LANES)
            for (int j = 0; j < 4; j++) {
                vec d = load(x + i + j * LANES) - mean;
                sum[j] += d * d;
            }
        for (; i + LANES <= e.length; i += LANES) {
            vec d = load(x + i) - mean;
            sum[0] += d * d;
        }
        for (; i < e.length; i++) rest += (double)(x[i] - mean) * (x[i] - mean);
    }
    return rest + (double)total(sum[0] + sum[1]) + (double)total(sum[2] + sum[3]);
}

static void norm_forward(const op *o, i64 n, const tensor *tensors, i64 client, float *act)
{
    const float *gamma = tensors[o->weight].value + client * tensors[o->weight].client;
    const float *beta = tensors[o->bias].value + client * tensors[o->bias].client;
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->h, o->w, o->opad, n);
    extent in = extent_of(o, n, o->pad), both = extent_of(o, n, o->pad + o->opad);
    double count = (double)(o->h * o->w * n);
    float *saved = act + o->statistics;
    for (i64 c = 0; c < o->c; c++) {
        const float *xc = x.data + c * x.plane;
        if (!o->has_statistics) {
            float mean = (float)(sum_rows(xc, x.row, in) / count);
            double variance = sum_squares(xc, x.row, in, mean) / count;
            saved[2 * c] = mean;
            saved[2 * c + 1] = (float)(1 / sqrt(variance + o->eps));
        }
        float mean = saved[2 * c], inverse = saved[2 * c + 1];
        float a = gamma[c] * inverse, b = beta[c] - mean * a;
        for (i64 r = 0; r < both.rows; r++) {
            const float *restrict from = xc + r * x.row;
            float *restrict to = y.data + c * y.plane + r * y.row;
            if (o->relu)
                for (i64 i = 0; i < both.length; i++) {
                    float v = a * from[i] + b;
                    to[i] = v <= 0 ? 0 : v;
                }
            else
                for (i64 i = 0; i < both.length; i++) to[i] = a * from[i] + b;
        }
    }
}

INLINE vec passed(vec g, vec y, int relu)
{
    return relu ? masked(g, ~(y <= 0)) : g;
}

static void norm_backward(const op *o, i64 n, const tensor *tensors, i64 client, float *act,
                          float *grads)
{
    const tensor *weight = tensors + o->weight, *bias = tensors + o->bias;
    const float *gamma = weight->value + client * weight->client;
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->h, o->w, o->opad, n);
    view g = view_of(grads + o->dout, o->h, o->w, o->dopad, n);
    extent e = extent_of(o, n, o->pad + o->opad + o->dopad);
    i64 full = e.length / LANES * LANES;
    mask tail = first(e.length - full);
    float count = (float)(o->h * o->w * n);
    const float *saved = act + o->statistics;
    for (i64 c = 0; c < o->c; c++) {
        const float *xc = x.data + c * x.plane, *yc = y.data + c * y.plane, *gc = g.data + c * g.plane;
        float mean = saved[2 * c], inverse = saved[2 * c + 1];
        vec sums[2] = {{0}}, products[2] = {{0}};
        for (i64 r = 0; r < e.rows; r++) {
            const float *xr = xc + r * x.row, *yr = yc + r * y.row, *gr = gc + r * g.row;
            i64 i = 0;
            for (; i + 2 * LANES <= e.length; i += 2 * LANES)
                for (int j = 0; j < 2; j++) {
                    i64 k = i + j * LANES;
                    vec v = passed(load(gr + k), o->relu ? load(yr + k) : (vec){0}, (int)o->relu);
                    sums[j] += v;
                    products[j] += v * (load(xr + k) - mean);
                }
            for (; i < full; i += LANES) {
                vec v = passed(load(gr + i), o->relu ? load(yr + i) : (vec){0}, (int)o->relu);
                sums[0] += v;
                products[0] += v * (load(xr + i) - mean);
            }
            if (full < e.length) {
                vec v = passed(load(gr + i), o->relu ? load(yr + i) : (vec){0}, (int)o->relu);
                v = masked(v, tail);
                sums[0] += v;
                products[0] += v * masked(load(xr + i) - mean, tail);
            }
        }
        float sum = total(sums[0] + sums[1]), product = total(products[0] + products[1]) * inverse;
        if (bias->gradient) bias->gradient[client * bias->client + c] = sum;
        if (weight->gradient) weight->gradient[client * weight->client + c] = product;
        if (o->din < 0) continue;
        view d = view_of(grads + o->din, o->h, o->w, o->dpad, n);
        extent all = extent_of(o, n, o->pad + o->opad + o->dopad + o->dpad);
        /* a (g - sum / count - (x - mean) inverse product / count) = a g - b x + z */
        float a = gamma[c] * inverse, b = a * inverse * product / count;
        float z = b * mean - a * sum / count;
        for (i64 r = 0; r < all.rows; r++) {
            const float *restrict xr = xc + r * x.row, *restrict yr = yc + r * y.row;
            const float *restrict gr = gc + r * g.row;
            float *restrict dr = d.data + c * d.plane + r * d.row;
#define SPREAD(GRADIENT, SET) \
    for (i64 i = 0; i < all.length; i++) dr[i] SET a * (GRADIENT) - b * xr[i] + z
            if (o->relu && o->add_in)
                SPREAD(yr[i] <= 0 ? 0 : gr[i], +=);
            else if (o->relu)
                SPREAD(yr[i] <= 0 ? 0 : gr[i], =);
            else if (o->add_in)
                SPREAD(gr[i], +=);
            else
                SPREAD(gr[i], =);
        }
    }
}

/* RELU, SCALE, ADD, COPY */
static void plain_forward(const op *o, i64 n, float *act)
{
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->h, o->w, o->opad, n);
    view z = view_of(act + (o->in2 < 0 ? o->in : o->in2), o->h, o->w, o->pad2, n);
    extent e = extent_of(o, n, o->pad + o->opad + o->pad2);
    float scale = (float)o->scale;
    for (i64 c = 0; c < o->c; c++)
        for (i64 r = 0; r < e.rows; r++) {
            const float *restrict from = x.data + c * x.plane + r * x.row;
            const float *restrict other = z.data + c * z.plane + r * z.row;
            float *restrict to = y.data + c * y.plane + r * y.row;
            if (o->kind == RELU)
                for (i64 i = 0; i < e.length; i++) to[i] = from[i] <= 0 ? 0 : from[i];
            else if (o->kind == ADD)
                for (i64 i = 0; i < e.length; i++) to[i] = from[i] + other[i];
            else
                for (i64 i = 0; i < e.length; i++) to[i] = scale * from[i];
        }
}

static void put(const op *o, i64 n, const float *y, i64 opad, float scale, const float *dout,
                float *din, i64 dpad, i64 add)
{
    view g = view_of((float *)dout, o->h, o->w, o->dopad, n);
    view d = view_of(din, o->h, o->w, dpad, n);
    view v = view_of((float *)(y ? y : dout), o->h, o->w, y ? opad : o->dopad, n);
    extent e = extent_of(o, n, o->dopad + dpad + (y ? opad : 0));
    for (i64 c = 0; c < o->c; c++)
        for (i64 r = 0; r < e.rows; r++) {
            const float *restrict gr = g.data + c * g.plane + r * g.row;
            const float *restrict vr = v.data + c * v.plane + r * v.row;
            float *restrict dr = d.data + c * d.plane + r * d.row;
            if (y && add)
                for (i64 i = 0; i < e.length; i++) dr[i] += vr[i] <= 0 ? 0 : gr[i];
            else if (y)
                for (i64 i = 0; i < e.length; i++) dr[i] = vr[i] <= 0 ? 0 : gr[i];
            else if (add)
                for (i64 i = 0; i < e.length; i++) dr[i] += scale * gr[i];
            else
                for (i64 i = 0; i < e.length; i++) dr[i] = scale * gr[i];
        }
}

static void plain_backward(const op *o, i64 n, float *act, float *grads)
{
    const float *y = o->kind == RELU ? act + o->out : 0, *dout = grads + o->dout;
    float scale = o->kind == ADD ? 1 : (float)o->scale;
    if (o->din >= 0) put(o, n, y, o->opad, scale, dout, grads + o->din, o->dpad, o->add_in);
    if (o->din2 >= 0) put(o, n, 0, 0, 1, dout, grads + o->din2, o->dpad2, o->add_in2);
}
