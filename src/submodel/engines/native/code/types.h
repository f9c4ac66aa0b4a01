/* Structures that library.py passes: both sides list the same fields in the same order. */
#pragma once
#include "vectors.h"

enum { CONVOLUTION, NORM, RELU, SCALE, ADD, MAX_POOL, MEAN_POOL, COPY };

typedef struct {
    i64 kind;
    i64 in, in2, out;          /* offsets in a client's activations; in2: what ADD or a convolution adds, or -1 */
    i64 din, din2, dout;       /* offsets in the gradients of activations; din: -1 if not wanted */
    i64 add_in, add_in2;       /* 1: another consumer has written its gradient there before */
    i64 c, h, w, pad;          /* of `in` */
    i64 oc, oh, ow, opad;      /* of `out` */
    i64 dpad, dopad;           /* the frames of din (and din2) and of dout */
    i64 pad2, dpad2;           /* of in2 and its gradient */
    i64 kh, kw, stride, edge;  /* of a filter or window; edge: its padding */
    i64 by_tiles;              /* 1: by Winograd's tiles of 2 x 2 (transforms.h) */
    i64 weight, bias;          /* numbers of tensors, or -1 */
    i64 relu;                  /* NORM: whether a ReLU follows */
    i64 statistics;            /* NORM: where mean and 1 / deviation of every channel are kept */
    i64 has_statistics;        /* NORM: 1: statistics are given, not those of the batch */
    double scale, eps;
} op;

typedef struct { /* a tensor of the stack: first dimension clients x rows */
    const float *value;
    float *gradient;           /* 0: not wanted */
    i64 client;                /* floats from one client to the next */
    i64 so, si, sk;            /* strides of a filter: outputs, inputs, taps */
} tensor;

typedef struct {
    i64 clients, batch;
    i64 channels, height, width, pad; /* of the inputs, as an activation at offset 0 */
    i64 outputs, output, doutput;     /* values per example, and where they and their gradient are */
    i64 activations;                  /* floats per client */
    i64 filters, offsets, phases, turns; /* places in the scratch memory */
} plan;

typedef struct { /* what goes with a tensor of the stack in training, client after client */
    float *momentum;           /* 0: none */
    const float *mask;         /* what its gradient is multiplied by; 0: nothing */
    i64 size;                  /* floats of a client */
} slot;

typedef struct {
    i64 steps;
    const float *images;       /* all examples: [channel][row][column] */
    const i64 *positions;      /* [client][step][example] of the batches */
    const i64 *targets;        /* of the same: places among the classes that count */
    const i64 *present;        /* [client][class]: outputs that count; 0: all of them */
    i64 classes, zeros;        /* how many these are; how many more count as 0 */
    const float *rates;        /* of the steps */
    float *losses;             /* [client][step] */
    i64 nesterov;
    double momentum, decay, clip, smoothing; /* clip: 0: none */
} training;

/* data: the first value inside the frame. Framed rows begin where vectors do, so that the loads of
 * every third tap do not straddle two lines of the cache; planning.py counts with the same rule. */
typedef struct { float *data; i64 plane, row; } view;

#define ALIGNMENT 16
static i64 aligned(i64 floats) { return (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static view view_of(float *base, i64 h, i64 w, i64 pad, i64 n)
{
    i64 margin = aligned(pad * n);
    view v;
    v.row = pad ? margin + aligned((w + pad) * n) : w * n;
    v.plane = (h + 2 * pad) * v.row;
    v.data = base + pad * v.row + margin;
    return v;
}
