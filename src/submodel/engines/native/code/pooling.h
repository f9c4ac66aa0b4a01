/* Pooling: windows without a frame. */
#pragma once
#include "types.h"

static vec chosen(mask m, vec yes, vec no) { return (vec)(((mask)yes & m) | ((mask)no & ~m)); }

static void pool_forward(const op *o, i64 n, float *act)
{
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->oh, o->ow, o->opad, n);
    float scale = 1 / (float)(o->kh * o->kw);
    mask whole = first(LANES), tail = first((n - 1) % LANES + 1);
    for (i64 c = 0; c < o->c; c++)
        for (i64 r = 0; r < o->oh; r++)
            for (i64 q = 0; q < o->ow; q++)
                for (i64 i = 0; i < n; i += LANES) {
                    const float *from =
                        x.data + c * x.plane + r * o->stride * x.row + q * o->stride * n + i;
                    vec out = load(from);
                    for (i64 a = 0; a < o->kh; a++)
                        for (i64 b = a == 0; b < o->kw; b++) {
                            vec f = load(from + a * x.row + b * n);
                            out = o->kind == MAX_POOL ? chosen((f > out) | (f != f), f, out) : out + f;
                        }
                    if (o->kind == MEAN_POOL) out *= scale;
                    store_masked(y.data + c * y.plane + r * y.row + q * n + i, out,
                                 n - i >= LANES ? whole : tail);
                }
}

static void pool_backward(const op *o, i64 n, float *act, float *grads)
{
    if (o->din < 0) return;
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->oh, o->ow, o->opad, n);
    view g = view_of(grads + o->dout, o->oh, o->ow, o->dopad, n);
    view d = view_of(grads + o->din, o->h, o->w, o->dpad, n);
    float scale = 1 / (float)(o->kh * o->kw);
    mask whole = first(LANES), tail = first((n - 1) % LANES + 1);
    /* windows side by side write every value once */
    int is_once = !o->add_in && o->kh == o->stride && o->kw == o->stride &&
                  o->oh * o->stride == o->h && o->ow * o->stride == o->w;
    for (i64 c = 0; c < o->c; c++) {
        if (!o->add_in && !is_once)
            for (i64 r = 0; r < o->h; r++)
                memset(d.data + c * d.plane + r * d.row, 0, sizeof(float) * o->w * n);
        for (i64 r = 0; r < o->oh; r++)
            for (i64 q = 0; q < o->ow; q++)
                for (i64 i = 0; i < n; i += LANES) {
                    i64 place = q * o->stride * n + i;
                    const float *from = x.data + c * x.plane + r * o->stride * x.row + place;
                    float *to = d.data + c * d.plane + r * o->stride * d.row + place;
                    vec top = load(y.data + c * y.plane + r * y.row + q * n + i);
                    vec left = load(g.data + c * g.plane + r * g.row + q * n + i);
                    for (i64 a = 0; a < o->kh; a++)
                        for (i64 b = 0; b < o->kw; b++) {
                            vec f = load(from + a * x.row + b * n), part = left * scale;
                            if (o->kind == MAX_POOL) { /* the first of equal ones gets it */
                                mask is_top = (f == top) | (f != f);
                                part = masked(left, is_top);
                                left = masked(left, ~is_top);
                            }
                            float *t = to + a * d.row + b * n;
                            if (is_once)
                                store_masked(t, part, n - i >= LANES ? whole : tail);
                            else
                                store_masked(t, load(t) + part, n - i >= LANES ? whole : tail);
                        }
                }
    }
}
