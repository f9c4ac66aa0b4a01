/* Norms and cross-entropy: each row of values by itself, every client with its own scale and shift. */
#pragma once
#include "functions.h"

INLINE float row_sum(const float *x, i64 width)
{
    vec sum = {0};
    for (i64 j = 0; j < width; j += LANES) sum += fetch(x + j, width - j);
    return total(sum);
}

/* shift: 0 for an RMS norm, which subtracts no mean; statistics: mean and 1 / deviation of rows */
void norm_rows_forward(const float *x, const float *scale, const float *shift, i64 centred,
                       float *out, float *statistics, i64 clients, i64 rows, i64 width, double eps)
{
    for (i64 r = 0; r < clients * rows; r++, x += width, out += width, statistics += 2) {
        const float *s = scale + r / rows * width, *b = shift ? shift + r / rows * width : 0;
        float mean = centred ? row_sum(x, width) / (float)width : 0.0f;
        vec squares = {0};
        for (i64 j = 0; j < width; j += LANES) {
            vec d = first_or(fetch(x + j, width - j) - mean, width - j, 0.0f);
            squares += d * d;
        }
        float factor = 1.0f / sqrtf(total(squares) / (float)width + (float)eps);
        statistics[0] = mean, statistics[1] = factor;
        for (i64 j = 0; j < width; j += LANES) {
            i64 left = width - j;
            vec y = (fetch(x + j, left) - mean) * factor * fetch(s + j, left);
            put(out + j, b ? y + fetch(b + j, left) : y, left);
        }
    }
}

/* dx, dscale, dshift: 0 if not needed */
void norm_rows_backward(const float *g, const float *x, const float *scale, const float *statistics,
                        i64 centred, float *dx, float *dscale, float *dshift, i64 clients, i64 rows,
                        i64 width)
{
    for (i64 r = 0; r < clients * rows; r++, g += width, x += width, statistics += 2) {
        i64 client = r / rows * width;
        const float *s = scale + client;
        float mean = statistics[0], factor = statistics[1];
        vec along = {0}, plain = {0};
        if (r % rows == 0 && dscale) memset(dscale + client, 0, 4 * width);
        if (r % rows == 0 && dshift) memset(dshift + client, 0, 4 * width);
        for (i64 j = 0; j < width; j += LANES) {
            i64 left = width - j;
            vec up = fetch(g + j, left), y = (fetch(x + j, left) - mean) * factor;
            vec down = up * fetch(s + j, left);
            along += down * y, plain += down;
            if (dscale) put(dscale + client + j, fetch(dscale + client + j, left) + up * y, left);
            if (dshift) put(dshift + client + j, fetch(dshift + client + j, left) + up, left);
        }
        if (!dx) continue;
        float by_value = total(along) / (float)width;
        float by_mean = centred ? total(plain) / (float)width : 0.0f;
        for (i64 j = 0; j < width; j += LANES) {
            i64 left = width - j;
            vec y = (fetch(x + j, left) - mean) * factor;
            vec down = fetch(g + j, left) * fetch(s + j, left);
            put(dx + r * width + j, (down - by_mean - y * by_value) * factor, left);
        }
    }
}

/* -log softmax(x)[label] of every row, 0 if it is ignored, and the logarithm of the sum. Returned is
 * the number of the first row, counted from 1, with an invalid label. */
i64 cross_entropy_forward(const float *x, const i64 *labels, i64 ignored, float *losses, float *logs,
                          i64 rows, i64 width)
{
    for (i64 r = 0; r < rows; r++)
        if (labels[r] != ignored && (labels[r] < 0 || labels[r] >= width)) return r + 1;
    for (i64 r = 0; r < rows; r++, x += width) {
        vec top = spread(-INFINITY), sum = {0};
        for (i64 j = 0; j < width; j += LANES) {
            top = larger(top, first_or(fetch(x + j, width - j), width - j, -INFINITY));
        }
        float most = largest(top);
        for (i64 j = 0; j < width; j += LANES) {
            sum += first_or(exponential(fetch(x + j, width - j) - most), width - j, 0.0f);
        }
        logs[r] = most + logf(total(sum));
        losses[r] = labels[r] == ignored ? 0.0f : logs[r] - x[labels[r]];
    }
    return 0;
}
void cross_entropy_backward(const float *g, const float *x, const i64 *labels, i64 ignored,
                            const float *logs, float *dx, i64 rows, i64 width)
{
    for (i64 r = 0; r < rows; r++, x += width, dx += width) {
        float up = labels[r] == ignored ? 0.0f : g[r];
        for (i64 j = 0; j < width; j += LANES)
            put(dx + j, up * exponential(fetch(x + j, width - j) - logs[r]), width - j);
        if (labels[r] != ignored) dx[labels[r]] -= up;
    }
}
