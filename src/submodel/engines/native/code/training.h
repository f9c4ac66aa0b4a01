/* All steps of a client in a round: batches, passes, cross-entropy and SGD. */
#pragma once
#include "passes.h"

/* Mean cross-entropy of a batch, and its gradient by the outputs: of those that `classes` names, in
 * order, or of all, and of `zeros` more that are always 0. Targets are places among these. */
static float cross_entropy(const plan *p, const training *t, const i64 *classes, const i64 *targets,
                           const float *act, float *grads)
{
    i64 n = p->batch, width = classes ? t->classes : p->outputs, all = width + t->zeros;
    float logits[all];
    double total = 0, even = t->smoothing / (double)all, rest = 1 - t->smoothing;
    if (classes) memset(grads + p->doutput, 0, sizeof(float) * p->outputs * n);
    for (i64 i = 0; i < n; i++) {
        float largest = t->zeros ? 0 : -INFINITY, sum = 0, plain = 0;
        for (i64 j = 0; j < width; j++) {
            logits[j] = act[p->output + (classes ? classes[j] : j) * n + i];
            if (logits[j] > largest) largest = logits[j];
        }
        for (i64 j = width; j < all; j++) logits[j] = 0;
        for (i64 j = 0; j < all; j++) {
            logits[j] -= largest;
            plain += logits[j];
            sum += expf(logits[j]);
        }
        double log_sum = log((double)sum);
        total += rest * (log_sum - logits[targets[i]]) + even * ((double)all * log_sum - plain);
        for (i64 j = 0; j < width; j++) {
            double wanted = even + (j == targets[i] ? rest : 0);
            grads[p->doutput + (classes ? classes[j] : j) * n + i] =
                (float)((expf(logits[j]) / sum - wanted) / (double)n);
        }
    }
    return (float)(total / (double)n);
}

/* w <- w - rate * (g + decay w), with momentum, like Sgd of tasks/optimisers.py */
static void descend(float *restrict w, const float *restrict g, float *restrict v, i64 size,
                    const training *t, float rate, float factor)
{
    float momentum = (float)t->momentum, decay = (float)t->decay;
    if (!v)
        for (i64 i = 0; i < size; i++) w[i] -= rate * (factor * g[i] + decay * w[i]);
    else if (t->nesterov)
        for (i64 i = 0; i < size; i++) {
            float move = factor * g[i] + decay * w[i];
            v[i] = momentum * v[i] + move;
            w[i] -= rate * (move + momentum * v[i]);
        }
    else
        for (i64 i = 0; i < size; i++) {
            v[i] = momentum * v[i] + (factor * g[i] + decay * w[i]);
            w[i] -= rate * v[i];
        }
}

static void train_client(const op *ops, i64 count, const plan *p, const tensor *tensors,
                         const slot *slots, i64 tensor_count, const training *t, i64 client,
                         float *act, float *grads, float *scratch)
{
    i64 n = p->batch, size = p->channels * p->height * p->width;
    const i64 *classes = t->present ? t->present + client * t->classes : 0;
    tensor here[tensor_count];
    for (i64 k = 0; k < tensor_count; k++) {
        here[k] = tensors[k];
        here[k].value += client * tensors[k].client; /* gradients are of one client alone */
    }
    for (i64 step = 0; step < t->steps; step++) {
        i64 first = (client * t->steps + step) * n;
        for (i64 i = 0; i < n; i++) put_example(p, t->images + t->positions[first + i] * size, i, act);
        pass_forward(ops, count, p, here, 0, act, scratch);
        t->losses[client * t->steps + step] =
            cross_entropy(p, t, classes, t->targets + first, act, grads);
        pass_backward(ops, count, p, here, 0, act, grads, scratch);
        double squares = 0;
        for (i64 k = 0; k < tensor_count; k++) {
            float *g = here[k].gradient;
            if (!g) continue;
            if (slots[k].mask) {
                const float *mask = slots[k].mask + client * slots[k].size;
                for (i64 i = 0; i < slots[k].size; i++) g[i] *= mask[i];
            }
            if (t->clip > 0) squares += sum_squares(g, 0, (extent){1, slots[k].size}, 0);
        }
        double factor = t->clip > 0 ? t->clip / (sqrt(squares) + 1e-6) : 1;
        if (factor > 1) factor = 1;
        for (i64 k = 0; k < tensor_count; k++)
            if (here[k].gradient)
                descend((float *)here[k].value, here[k].gradient,
                        slots[k].momentum ? slots[k].momentum + client * slots[k].size : 0,
                        slots[k].size, t, t->rates[step], (float)factor);
    }
}
