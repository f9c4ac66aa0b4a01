/* A list of steps that run for one client after another, so that the output of a step is in the cache
 * when the next one reads it. tape.py passes it: both sides list the same fields in the same order. */
#pragma once
#include "attention.h"
#include "dense.h"
#include "rows.h"

enum { LINEAR_FORWARD, LINEAR_BACKWARD, ACTIVATION_FORWARD, ACTIVATION_BACKWARD, NORM_FORWARD,
       NORM_BACKWARD, ATTENTION_FORWARD, ATTENTION_BACKWARD, ENTROPY_FORWARD, ENTROPY_BACKWARD,
       COPY_VALUES, CLEAR, ADD_VALUES, MULTIPLY_VALUES };
#define DIMENSIONS 5

typedef struct { i64 base, offset, step; } spot; /* of a tensor, or -1; in floats, step by client */
typedef struct {
    i64 kind;
    spot tensors[9];
    i64 numbers[32];
    double number;
} step;

INLINE void combine_row(i64 kind, i64 n, const float *a, i64 sa, const float *b, i64 sb, float *c, i64 sc)
{
    if (sa == 1 && sb == 1 && sc == 1 && kind == ADD_VALUES)
        for (i64 i = 0; i < n; i += LANES) put(c + i, fetch(a + i, n - i) + fetch(b + i, n - i), n - i);
    else if (sa == 1 && sb == 1 && sc == 1)
        for (i64 i = 0; i < n; i += LANES) put(c + i, fetch(a + i, n - i) * fetch(b + i, n - i), n - i);
    else if (kind == ADD_VALUES)
        for (i64 i = 0; i < n; i++) c[i * sc] = a[i * sa] + b[i * sb];
    else
        for (i64 i = 0; i < n; i++) c[i * sc] = a[i * sa] * b[i * sb];
}
INLINE void copy_row(i64 n, const float *a, i64 sa, float *c, i64 sc, float factor)
{
    if (sa == 1 && sc == 1)
        for (i64 i = 0; i < n; i += LANES) put(c + i, fetch(a + i, n - i) * factor, n - i);
    else
        for (i64 i = 0; i < n; i++) c[i * sc] = a[i * sa] * factor;
}

/* n: sizes, then the strides of a, of b and of c, the innermost last */
static void each_row(const step *s, const float *a, const float *b, float *c)
{
    const i64 *n = s->numbers, *sa = n + DIMENSIONS, *sb = sa + DIMENSIONS, *sc = sb + DIMENSIONS;
    for (i64 i = 0; i < n[0]; i++)
        for (i64 j = 0; j < n[1]; j++)
            for (i64 k = 0; k < n[2]; k++)
                for (i64 l = 0; l < n[3]; l++) {
                    const float *p = a + i * sa[0] + j * sa[1] + k * sa[2] + l * sa[3];
                    float *r = c + i * sc[0] + j * sc[1] + k * sc[2] + l * sc[3];
                    if (s->kind == COPY_VALUES) {
                        copy_row(n[4], p, sa[4], r, sc[4], (float)s->number);
                        continue;
                    }
                    const float *q = b + i * sb[0] + j * sb[1] + k * sb[2] + l * sb[3];
                    combine_row(s->kind, n[4], p, sa[4], q, sb[4], r, sc[4]);
                }
}

static heads heads_at(float *p, const i64 *strides)
{
    return (heads){p, strides[0], strides[1], strides[2]};
}

/* the row of the first invalid label, counted from 1, or 0 */
static i64 run_step(const step *s, float *const *p)
{
    const i64 *n = s->numbers;
    attention form = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], s->number};
    heads h[7];
    switch (s->kind) {
    case LINEAR_FORWARD: linear_forward(p[0], p[1], p[2], p[3], 1, n[0], n[1], n[2], n[3]); break;
    case LINEAR_BACKWARD:
        linear_backward(p[0], p[1], p[2], p[3], p[4], p[5], 1, n[0], n[1], n[2], n[3]);
        break;
    case ACTIVATION_FORWARD: activation_forward(n[0], p[0], p[1], n[1]); break;
    case ACTIVATION_BACKWARD: activation_backward(n[0], p[1], p[0], p[2], n[1]); break;
    case NORM_FORWARD:
        norm_rows_forward(p[0], p[1], p[2], n[0], p[3], p[4], 1, n[1], n[2], s->number);
        break;
    case NORM_BACKWARD:
        norm_rows_backward(p[0], p[1], p[2], p[3], n[0], p[4], p[5], p[6], 1, n[1], n[2]);
        break;
    case ATTENTION_FORWARD:
        for (int i = 0; i < 4; i++) h[i] = heads_at(p[i], n + 8 + 3 * i);
        attention_forward(&form, h, h + 1, h + 2, h + 3, p[4]);
        break;
    case ATTENTION_BACKWARD:
        for (int i = 0; i < 7; i++) h[i] = heads_at(p[i], n + 8 + 3 * i);
        attention_backward(&form, h, h + 1, h + 2, h + 3, p[7], h + 4, h + 5, h + 6, p[8]);
        break;
    case ENTROPY_FORWARD:
        return cross_entropy_forward(p[0], (const i64 *)p[1], n[0], p[2], p[3], n[1], n[2]);
    case ENTROPY_BACKWARD:
        cross_entropy_backward(p[0], p[1], (const i64 *)p[2], n[0], p[3], p[4], n[1], n[2]);
        break;
    case CLEAR: memset(p[0], 0, 4 * n[0]); break;
    case COPY_VALUES: each_row(s, p[0], 0, p[1]); break;
    default: each_row(s, p[0], p[1], p[2]);
    }
    return 0;
}

i64 run_tape(const step *steps, i64 count, float *const *at, i64 clients)
{
    for (i64 client = 0; client < clients; client++)
        for (const step *s = steps; s < steps + count; s++) {
            float *p[9];
            for (int i = 0; i < 9; i++) {
                spot t = s->tensors[i];
                p[i] = t.base < 0 ? 0 : at[t.base] + t.offset + client * t.step;
            }
            if (run_step(s, p)) return 1;
        }
    return 0;
}
