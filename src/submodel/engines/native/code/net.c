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
#include "training.h"

void forward(const op *ops, i64 count, const plan *p, const tensor *tensors, const float *inputs,
             float *outputs, float *activations, float *scratch)
{
    i64 n = p->batch, size = p->channels * p->height * p->width;
    for (i64 client = 0; client < p->clients; client++) {
        float *act = activations + client * p->activations;
        for (i64 i = 0; i < n; i++) put_example(p, inputs + (i * p->clients + client) * size, i, act);
        pass_forward(ops, count, p, tensors, client, act, scratch);
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
        for (i64 i = 0; i < n; i++)
            for (i64 j = 0; j < p->outputs; j++)
                grads[p->doutput + j * n + i] = upstream[(i * p->clients + client) * p->outputs + j];
        pass_backward(ops, count, p, tensors, client, activations + client * p->activations, grads,
                      scratch);
    }
}

void train(const op *ops, i64 count, const plan *p, const tensor *tensors, const slot *slots,
           i64 tensor_count, const training *t, float *activations, float *grads, float *scratch)
{
    for (i64 client = 0; client < p->clients; client++)
        train_client(ops, count, p, tensors, slots, tensor_count, t, client, activations, grads,
                     scratch);
}

i64 lanes(void) { return LANES; }
