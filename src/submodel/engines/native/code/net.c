/* The steps of small convolutional nets, client by client, in plain C.
 *
 * An activation of one client lies in memory as [channel][row][column][example], with a frame of
 * zeros of `pad` rows and columns around every channel where a convolution wants one. A row of
 * columns x examples is contiguous, and a tap of a filter is a shift along it: so vectors are full
 * however few the channels are. A stack of clients is a loop around all of this; what one client
 * computes never depends on another.
 *
 * Built by build.py with the machine's own instructions; called by library.py.
 */
#include "convolution.h"
#include "layers.h"
#include "pooling.h"

void forward(const op *ops, i64 count, const plan *p, const tensor *tensors, const float *inputs,
             float *outputs, float *activations, float *scratch)
{
    i64 n = p->batch, size = p->channels * p->height * p->width;
    for (i64 client = 0; client < p->clients; client++) {
        float *act = activations + client * p->activations;
        view x = view_of(act, p->height, p->width, p->pad, n);
        for (i64 c = 0; c < p->channels; c++)
            for (i64 r = 0; r < p->height; r++)
                for (i64 i = 0; i < n; i++) {
                    const float *from =
                        inputs + (i * p->clients + client) * size + (c * p->height + r) * p->width;
                    float *to = x.data + c * x.plane + r * x.row + i;
                    for (i64 q = 0; q < p->width; q++) to[q * n] = from[q];
                }
        for (const op *o = ops; o < ops + count; o++)
            switch (o->kind) {
            case CONVOLUTION: conv_forward(o, p, tensors, client, act, scratch); break;
            case NORM: norm_forward(o, n, tensors, client, act); break;
            case MAX_POOL:
            case MEAN_POOL: pool_forward(o, n, act); break;
            default: plain_forward(o, n, act);
            }
        for (i64 i = 0; i < n; i++)
            for (i64 j = 0; j < p->outputs; j++)
                outputs[(i * p->clients + client) * p->outputs + j] = act[p->output + j * n + i];
    }
}

void backward(const op *ops, i64 count, const plan *p, const tensor *tensors, const float *upstream,
              float *activations, float *grads, float *scratch)
{
    i64 n = p->batch;
    for (i64 client = 0; client < p->clients; client++) {
        float *act = activations + client * p->activations;
        for (i64 i = 0; i < n; i++)
            for (i64 j = 0; j < p->outputs; j++)
                grads[p->doutput + j * n + i] = upstream[(i * p->clients + client) * p->outputs + j];
        for (const op *o = ops + count - 1; o >= ops; o--) {
            if (o->kind == NORM) {
                norm_backward(o, n, tensors, client, act, grads);
            } else if (o->kind == MAX_POOL || o->kind == MEAN_POOL) {
                pool_backward(o, n, act, grads);
            } else if (o->kind != CONVOLUTION) {
                plain_backward(o, n, act, grads);
            } else {
                const tensor *w = tensors + o->weight;
                view g = view_of(grads + o->dout, o->oh, o->ow, o->dopad, n);
                if (o->bias >= 0 && tensors[o->bias].gradient) {
                    extent e = o->dopad ? (extent){o->oh, o->ow * n} : (extent){1, o->oh * o->ow * n};
                    float *b = tensors[o->bias].gradient + client * tensors[o->bias].client;
                    for (i64 c = 0; c < o->oc; c++)
                        b[c] = (float)(o->scale * sum_rows(g.data + c * g.plane, g.row, e));
                }
                if (w->gradient) filter_gradient(o, p, w, client, act, g, scratch);
                if (o->din >= 0)
                    input_gradient(o, p, w, client, g, grads, scratch);
                if (o->din2 >= 0) {
                    op sum = *o;
                    sum.c = o->oc, sum.h = o->oh, sum.w = o->ow;
                    put(&sum, n, 0, 0, 1, grads + o->dout, grads + o->din2, o->dpad2, o->add_in2);
                }
            }
        }
    }
}

i64 lanes(void) { return LANES; }
