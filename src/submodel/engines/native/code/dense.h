/* Linear layers, every client with its own weight. */
#pragma once
#include "strips.h"

/* inputs_first: the weight is (inputs, outputs), as in GPT-2, not (outputs, inputs) */
void linear_forward(const float *x, const float *weight, const float *bias, float *out, i64 clients,
                    i64 rows, i64 inputs, i64 outputs, i64 inputs_first)
{
    for (i64 c = 0; c < clients; c++) {
        const float *w = weight + c * inputs * outputs;
        matrix factor = inputs_first ? (matrix){w, outputs, 1} : (matrix){w, 1, inputs};
        multiply((matrix){x + c * rows * inputs, inputs, 1}, factor, rows, inputs, outputs,
                 out + c * rows * outputs, outputs, bias ? bias + c * outputs : 0, 0);
    }
}

/* four vectors of columns at a time, as one sum would wait for itself */
static void sum_columns(const float *g, i64 rows, i64 columns, float *out)
{
    i64 j = 0;
    for (; j + 4 * LANES <= columns; j += 4 * LANES) {
        vec sum[4] = {{0}};
        for (i64 r = 0; r < rows; r++)
            for (int v = 0; v < 4; v++) sum[v] += load(g + r * columns + j + v * LANES);
        for (int v = 0; v < 4; v++) store(out + j + v * LANES, sum[v]);
    }
    for (; j < columns; j += LANES) {
        vec sum = {0};
        for (i64 r = 0; r < rows; r++) sum += fetch(g + r * columns + j, columns - j);
        put(out + j, sum, columns - j);
    }
}

/* dx, dweight, dbias: 0 if not needed */
void linear_backward(const float *g, const float *x, const float *weight, float *dx, float *dweight,
                     float *dbias, i64 clients, i64 rows, i64 inputs, i64 outputs, i64 inputs_first)
{
    for (i64 c = 0; c < clients; c++, g += rows * outputs, x += rows * inputs) {
        const float *w = weight + c * inputs * outputs;
        float *d = dweight ? dweight + c * inputs * outputs : 0;
        matrix factor = inputs_first ? (matrix){w, 1, outputs} : (matrix){w, inputs, 1};
        if (dx)
            multiply((matrix){g, outputs, 1}, factor, rows, outputs, inputs, dx + c * rows * inputs,
                     inputs, 0, 0);
        if (d && inputs_first)
            multiply((matrix){x, 1, inputs}, (matrix){g, outputs, 1}, inputs, rows, outputs, d,
                     outputs, 0, 0);
        if (d && !inputs_first)
            multiply((matrix){g, 1, outputs}, (matrix){x, inputs, 1}, outputs, rows, inputs, d, inputs,
                     0, 0);
        if (dbias)
            sum_columns(g, rows, outputs, dbias + c * outputs);
    }
}
