/* Attention of short sequences, head by head; keys and values may be shared by several heads. */
#pragma once
#include "matrices.h"

typedef struct { float *data; i64 batch, head, place; } heads; /* strides; values lie side by side */
typedef struct {
    i64 batch, heads, key_heads, places, keys, size, value_size, causal;
    double scale;
} attention;

#define BLOCK 16 /* rows that see the same keys, or are masked one by one */
static i64 least(i64 x, i64 y) { return x < y ? x : y; }
INLINE float *head_of(const heads *t, i64 b, i64 h) { return t->data + b * t->batch + h * t->head; }

/* weights: (batch, heads, places, keys), whose upper triangle is left as it was if it is causal */
void attention_forward(const attention *o, const heads *query, const heads *key, const heads *value,
                       const heads *out, float *weights)
{
    i64 keys = o->keys, share = o->heads / o->key_heads;
    for (i64 b = 0; b < o->batch; b++)
        for (i64 h = 0; h < o->heads; h++) {
            float *w = weights + (b * o->heads + h) * o->places * keys;
            const float *q = head_of(query, b, h), *v = head_of(value, b, h / share);
            matrix k = {head_of(key, b, h / share), 1, key->place};
            for (i64 r = 0; r < o->places; r += BLOCK) {
                i64 rows = least(BLOCK, o->places - r), seen = o->causal ? least(keys, r + rows) : keys;
                multiply((matrix){q + r * query->place, query->place, 1}, k, rows, o->size, seen,
                         w + r * keys, keys, 0, 0);
                for (i64 i = r; i < r + rows; i++) {
                    float *row = w + i * keys;
                    vec top = spread(-INFINITY), sum = {0};
                    for (i64 j = 0; j < seen; j += LANES) {
                        i64 valid = (o->causal ? least(i + 1, seen) : seen) - j;
                        vec y = fetch(row + j, seen - j) * (float)o->scale;
                        y = valid > 0 ? first_or(y, valid, -INFINITY) : spread(-INFINITY);
                        put(row + j, y, seen - j);
                        top = larger(top, y);
                    }
                    float most = largest(top);
                    for (i64 j = 0; j < seen; j += LANES) {
                        vec y = exponential(fetch(row + j, seen - j) - most);
                        put(row + j, y, seen - j);
                        sum += first_or(y, seen - j, 0.0f);
                    }
                    float factor = 1.0f / total(sum);
                    for (i64 j = 0; j < seen; j += LANES)
                        put(row + j, fetch(row + j, seen - j) * factor, seen - j);
                }
                multiply((matrix){w + r * keys, keys, 1}, (matrix){v, value->place, 1}, rows, seen,
                         o->value_size, head_of(out, b, h) + r * out->place, out->place, 0, 0);
            }
        }
}

/* of_scores: memory for places x keys values */
void attention_backward(const attention *o, const heads *up, const heads *query, const heads *key,
                        const heads *value, const float *weights, const heads *dquery,
                        const heads *dkey, const heads *dvalue, float *of_scores)
{
    i64 keys = o->keys, share = o->heads / o->key_heads;
    for (i64 b = 0; b < o->batch; b++)
        for (i64 h = 0; h < o->heads; h++) {
            const float *w = weights + (b * o->heads + h) * o->places * keys;
            const float *g = head_of(up, b, h), *q = head_of(query, b, h);
            const float *k = head_of(key, b, h / share);
            matrix v = {head_of(value, b, h / share), 1, value->place};
            for (i64 r = 0; r < o->places; r += BLOCK) {
                i64 rows = least(BLOCK, o->places - r), seen = o->causal ? least(keys, r + rows) : keys;
                multiply((matrix){g + r * up->place, up->place, 1}, v, rows, o->value_size, seen,
                         of_scores + r * keys, keys, 0, 0);
                for (i64 i = r; i < r + rows; i++) {
                    float *d = of_scores + i * keys;
                    const float *p = w + i * keys;
                    vec sum = {0};
                    for (i64 j = 0; j < seen; j += LANES)
                        sum += fetch(d + j, seen - j) * fetch(p + j, seen - j);
                    float mean = total(sum), scale = (float)o->scale;
                    for (i64 j = 0; j < seen; j += LANES) {
                        vec y = fetch(p + j, seen - j) * (fetch(d + j, seen - j) - mean) * scale;
                        put(d + j, y, seen - j);
                    }
                }
                multiply((matrix){of_scores + r * keys, keys, 1}, (matrix){k, key->place, 1}, rows,
                         seen, o->size, head_of(dquery, b, h) + r * dquery->place, dquery->place, 0, 0);
            }
            float *dk = head_of(dkey, b, h / share), *dv = head_of(dvalue, b, h / share);
            i64 adds = h % share != 0;
            for (i64 r = 0; r < keys; r += BLOCK) {
                i64 rows = least(BLOCK, keys - r), from = o->causal ? least(r, o->places) : 0;
                i64 depth = o->places - from;
                float *c = dk + r * dkey->place, *e = dv + r * dvalue->place;
                multiply((matrix){of_scores + from * keys + r, 1, keys},
                         (matrix){q + from * query->place, query->place, 1}, rows, depth, o->size, c,
                         dkey->place, adds ? c : 0, dkey->place);
                multiply((matrix){w + from * keys + r, 1, keys},
                         (matrix){g + from * up->place, up->place, 1}, rows, depth, o->value_size, e,
                         dvalue->place, adds ? e : 0, dvalue->place);
            }
        }
}
