/* Pooling: windows without a frame. */
#pragma once
#include "types.h"

static void pool_forward(const op *o, i64 n, float *act)
{
    view x = view_of(act + o->in, o->h, o->w, o->pad, n);
    view y = view_of(act + o->out, o->oh, o->ow, o->opad, n);
    float scale = 1 / (float)(o->kh * o->kw);
    for (i64 c = 0; c < o->c; c++)
        for (i64 r = 0; r < o->oh; r++)
            for (i64 q = 0; q < o->ow; q++) {
                const float *from = x.data + c * x.plane + r * o->stride * x.row + q * o->stride * n;
                float *restrict to = y.data + c * y.plane + r * y.row + q * n;
                memcpy(to, from, sizeof(float) * n);
                for (i64 k = 1; k < o->kh * o->kw; k++) {
                    const float *restrict f = from + k / o->kw * x.row + k % o->kw * n;
                    if (o->kind == MAX_POOL)
                        for (i64 i = 0; i < n; i++) to[i] = f[i] > to[i] || f[i] != f[i] ? f[i] : to[i];
                    else
                        for (i64 i = 0; i < n; i++) to[i] += f[i];
                }
                if (o->kind == MEAN_POOL)
                    for (i64 i = 0; i < n; i++) to[i] *= scale;
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
    for (i64 c = 0; c < o->c; c++) {
        if (!o->add_in)
            for (i64 r = 0; r < o->h; r++)
                memset(d.data + c * d.plane + r * d.row, 0, sizeof(float) * o->w * n);
        for (i64 r = 0; r < o->oh; r++)
            for (i64 q = 0; q < o->ow; q++) {
                i64 at = r * o->stride * x.row + q * o->stride * n;
                i64 to = r * o->stride * d.row + q * o->stride * n;
                const float *restrict gr = g.data + c * g.plane + r * g.row + q * n;
                const float *restrict top = y.data + c * y.plane + r * y.row + q * n;
                float left[n]; /* the first of equal ones gets it */
                memcpy(left, gr, sizeof(float) * n);
                for (i64 k = 0; k < o->kh * o->kw; k++) {
                    const float *restrict f = x.data + c * x.plane + at + k / o->kw * x.row + k % o->kw * n;
                    float *restrict dr = d.data + c * d.plane + to + k / o->kw * d.row + k % o->kw * n;
                    if (o->kind == MAX_POOL)
                        for (i64 i = 0; i < n; i++) {
                            int is_top = f[i] == top[i] || f[i] != f[i];
                            dr[i] += is_top ? left[i] : 0;
                            left[i] = is_top ? 0 : left[i];
                        }
                    else
                        for (i64 i = 0; i < n; i++) dr[i] += scale * gr[i];
                }
            }
    }
}
