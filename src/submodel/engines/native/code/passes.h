/* One client's forward and backward pass through all layers. */
#pragma once
#include "convolution.h"
#include "layers.h"
#include "pooling.h"

/* an image of [channel][row][column] as example `i` of the inputs */
static void put_example(const plan *p, const float *image, i64 i, float *act)
{
    view x = view_of(act, p->height, p->width, p->pad, p->batch);
    for (i64 c = 0; c < p->channels; c++)
        for (i64 r = 0; r < p->height; r++, image += p->width) {
            float *to = x.data + c * x.plane + r * x.row + i;
            for (i64 q = 0; q < p->width; q++) to[q * p->batch] = image[q];
        }
}

static void pass_forward(const op *ops, i64 count, const plan *p, const tensor *tensors, i64 client,
                         float *act, float *scratch)
{
    i64 n = p->batch;
    for (const op *o = ops; o < ops + count; o++)
        switch (o->kind) {
        case CONVOLUTION: conv_forward(o, p, tensors, client, act, scratch); break;
        case NORM: norm_forward(o, n, tensors, client, act); break;
        case MAX_POOL:
        case MEAN_POOL: pool_forward(o, n, act); break;
        default: plain_forward(o, n, act);
        }
}

static void conv_backward(const op *o, const plan *p, const tensor *tensors, i64 client, float *act,
                          float *grads, float *scratch)
{
    i64 n = p->batch;
    const tensor *w = tensors + o->weight;
    view g = view_of(grads + o->dout, o->oh, o->ow, o->dopad, n);
    if (o->bias >= 0 && tensors[o->bias].gradient) {
        extent e = o->dopad ? (extent){o->oh, o->ow * n} : (extent){1, o->oh * o->ow * n};
        float *b = tensors[o->bias].gradient + client * tensors[o->bias].client;
        for (i64 c = 0; c < o->oc; c++)
            b[c] = (float)(o->scale * sum_rows(g.data + c * g.plane, g.row, e));
    }
    if (w->gradient) filter_gradient(o, p, w, client, act, g, scratch);
    if (o->din >= 0) input_gradient(o, p, w, client, g, grads, scratch);
    if (o->din2 >= 0) {
        op sum = *o;
        sum.c = o->oc, sum.h = o->oh, sum.w = o->ow;
        put(&sum, n, 0, 0, 1, grads + o->dout, grads + o->din2, o->dpad2, o->add_in2);
    }
}

static void pass_backward(const op *ops, i64 count, const plan *p, const tensor *tensors, i64 client,
                          float *act, float *grads, float *scratch)
{
    i64 n = p->batch;
    for (const op *o = ops + count - 1; o >= ops; o--)
        switch (o->kind) {
        case CONVOLUTION: conv_backward(o, p, tensors, client, act, grads, scratch); break;
        case NORM: norm_backward(o, n, tensors, client, act, grads); break;
        case MAX_POOL:
        case MEAN_POOL: pool_backward(o, n, act, grads); break;
        default: plain_backward(o, n, act, grads);
        }
}
