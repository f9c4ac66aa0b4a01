/* Attention of short sequences, head by head; keys and values may be shared by several heads.
 *
 * Weights lie as [key][place]: places are side by side in vectors, and the largest score of a place
 * or the sum over its keys is found without going across a vector. */
#pragma once
#include "strips.h"

typedef struct { float *data; i64 batch, head, place; } heads; /* strides; values are contiguous */
typedef struct {
    i64 batch, heads, key_heads, places, keys, size, value_size, causal;
    double scale;
} attention;

static i64 least(i64 x, i64 y) { return x < y ? x : y; }
INLINE float *head_of(const heads *t, i64 b, i64 h) { return t->data + b * t->batch + h * t->head; }

/* The softmax of some places, from r on, over the keys that they see. */
static void soften(float *w, i64 places, i64 r, i64 rows, i64 seen, i64 causal, float scale)
{
    vec top = spread(-INFINITY), sum = {0};
    float *p = w + r;
    for (i64 j = 0; j < seen; j++) {
        vec y = fetch(p + j * places, rows) * scale;
        if (causal && j > r) y = last_or(y, j - r, -INFINITY);
        put(p + j * places, y, rows);
        top = larger(y, top);
    }
    for (i64 j = 0; j < seen; j++) {
        vec y = exponential(fetch(p + j * places, rows) - top);
        put(p + j * places, y, rows);
        sum += y;
    }
    sum = 1.0f / sum;
    for (i64 j = 0; j < seen; j++) put(p + j * places, fetch(p + j * places, rows) * sum, rows);
}

/* weights: (batch, heads, keys, places); entries that no place of a vector sees are not written */
void attention_forward(const attention *o, const heads *query, const heads *key, const heads *value,
                       const heads *out, float *weights)
{
    i64 keys = o->keys, places = o->places, share = o->heads / o->key_heads;
    for (i64 b = 0; b < o->batch; b++)
        for (i64 h = 0; h < o->heads; h++) {
            float *w = weights + (b * o->heads + h) * places * keys;
            const float *q = head_of(query, b, h), *v = head_of(value, b, h / share);
            matrix k = {head_of(key, b, h / share), key->place, 1};
            for (i64 r = 0; r < places; r += LANES) {
                i64 rows = least(LANES, places - r), seen = o->causal ? least(keys, r + rows) : keys;
                multiply(k, (matrix){q + r * query->place, 1, query->place}, seen, o->size, rows,
                         w + r, places, 0, 0);
                soften(w, places, r, rows, seen, o->causal, (float)o->scale);
                multiply((matrix){w + r, 1, places}, (matrix){v, value->place, 1}, rows, seen,
                         o->value_size, head_of(out, b, h) + r * out->place, out->place, 0, 0);
            }
        }
}

/* From the gradients d of weights p to those of scores. */
static void soften_backward(float *d, const float *p, i64 places, i64 rows, i64 seen, float scale)
{
    vec mean = {0};
    for (i64 j = 0; j < seen; j++) mean += fetch(d + j * places, rows) * fetch(p + j * places, rows);
    for (i64 j = 0; j < seen; j++) {
        vec y = fetch(p + j * places, rows) * (fetch(d + j * places, rows) - mean) * scale;
        put(d + j * places, y, rows);
    }
}

/* of_scores: memory for keys x places values */
void attention_backward(const attention *o, const heads *up, const heads *query, const heads *key,
                        const heads *value, const float *weights, const heads *dquery,
                        const heads *dkey, const heads *dvalue, float *of_scores)
{
    i64 keys = o->keys, places = o->places, share = o->heads / o->key_heads;
    for (i64 b = 0; b < o->batch; b++)
        for (i64 h = 0; h < o->heads; h++) {
            const float *w = weights + (b * o->heads + h) * places * keys;
            const float *g = head_of(up, b, h), *q = head_of(query, b, h);
            const float *k = head_of(key, b, h / share);
            matrix v = {head_of(value, b, h / share), value->place, 1};
            for (i64 r = 0; r < places; r += LANES) {
                i64 rows = least(LANES, places - r), seen = o->causal ? least(keys, r + rows) : keys;
                multiply(v, (matrix){g + r * up->place, 1, up->place}, seen, o->value_size, rows,
                         of_scores + r, places, 0, 0);
                soften_backward(of_scores + r, w + r, places, rows, seen, (float)o->scale);
                multiply((matrix){of_scores + r, 1, places}, (matrix){k, key->place, 1}, rows, seen,
                         o->size, head_of(dquery, b, h) + r * dquery->place, dquery->place, 0, 0);
            }
            float *dk = head_of(dkey, b, h / share), *dv = head_of(dvalue, b, h / share);
            i64 adds = h % share != 0;
            for (i64 r = 0; r < keys; r += LANES) { /* of causal ones, places from r on see them */
                i64 rows = least(LANES, keys - r), from = o->causal ? least(r, places) : 0;
                i64 depth = places - from;
                float *c = dk + r * dkey->place, *e = dv + r * dvalue->place;
                multiply((matrix){of_scores + r * places + from, places, 1},
                         (matrix){q + from * query->place, query->place, 1}, rows, depth, o->size, c,
                         dkey->place, adds ? c : 0, dkey->place);
                multiply((matrix){w + r * places + from, places, 1},
                         (matrix){g + from * up->place, up->place, 1}, rows, depth, o->value_size, e,
                         dvalue->place, adds ? e : 0, dvalue->place);
            }
        }
}
