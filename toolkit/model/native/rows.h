/* The floating-point parts of a kernel set, included by every kernels_*.c under that file's instruction set.
 *
 * Written with the compiler's vector types, so that one text serves all sets. Vectors are only ever combined lane by lane;
 * reductions keep eight partial sums (element i goes to lane i % 8) and add the lanes as ((0+4)+(2+6)) + ((1+5)+(3+7)).
 * No fused multiply-add (-ffp-contract=off): with it the sets would differ in the last bit.
 */
#include <math.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int16_t h8 __attribute__((vector_size(16)));

enum { STRIP = 64 }; /* slots whose values stay in the nearest cache while rows and heads take turns */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

INLINE v8 load(const float *p) {
    v8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void save(float *p, v8 v) { memcpy(p, &v, sizeof v); }

INLINE v8 all(float x) { return (v8){x, x, x, x, x, x, x, x}; }

INLINE float total(v8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

/* The totals of eight vectors, each in the order of `total`. */
INLINE v8 totals(const v8 *r) {
#define HALVES(a, b) (SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
    v8 a = HALVES(r[0], r[4]), b = HALVES(r[1], r[5]), c = HALVES(r[2], r[6]), d = HALVES(r[3], r[7]);
    v8 ab = SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    v8 cd = SHUFFLE(c, d, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(ab, cd, 0, 2, 8, 10, 4, 6, 12, 14) + SHUFFLE(ab, cd, 1, 3, 9, 11, 5, 7, 13, 15);
#undef HALVES
}

INLINE v8 choose(i8 mask, v8 yes, v8 no) { return (v8)((mask & (i8)yes) | (~mask & (i8)no)); }

/* Nearest integer, ties to even, of |x| < 2^22: adding 1.5 * 2^23 leaves it in the low bits. */
#define SHIFTER 12582912.0f
INLINE i8 nearest(v8 x) { return (i8)(x + all(SHIFTER)) - (i8)all(SHIFTER); }

/* e^x within 1.2e-7 of itself; x is clamped to -87 ... 88, inside the normal floats. */
INLINE v8 exponential(v8 x) {
    x = choose(x < all(-87.0f), all(-87.0f), x);
    x = choose(x > all(88.0f), all(88.0f), x);
    v8 n = (x * all(1.44269504f) + all(SHIFTER)) - all(SHIFTER);
    v8 r = (x - n * all(0.693359375f)) - n * all(-2.12194440e-4f); /* ln 2 in two parts, the first exact times n */
    v8 y = all(1.9875691500e-4f);
    y = y * r + all(1.3981999507e-3f);
    y = y * r + all(8.3334519073e-3f);
    y = y * r + all(4.1665795894e-2f);
    y = y * r + all(1.6666665459e-1f);
    y = y * r + all(5.0000001201e-1f);
    y = y * (r * r) + r + all(1.0f);
    return y * (v8)((nearest(n) + 127) << 23);
}

static void norm(const float *x, const float *weight, int64_t n, float epsilon, float *y) {
    v8 squares = all(0.0f);
    for (int64_t i = 0; i < n; i += LANES) squares += load(x + i) * load(x + i);
    v8 factor = all(1.0f / sqrtf(total(squares) / (float)n + epsilon));
    for (int64_t i = 0; i < n; i += LANES) save(y + i, load(x + i) * factor * load(weight + i));
}

#ifndef PUT
#define PUT put_pairs
/* Eight whole numbers of inputs i, i + 1, ... as pairs. */
static inline void put_pairs(int16_t *X, int64_t rows, int64_t row, int64_t i, h8 q) {
    for (int64_t k = 0; k < LANES / 2; k++) memcpy(X + (i + 2 * k) * rows + 2 * row, (int16_t *)&q + 2 * k, 2 * sizeof *X);
}
#else
static inline void put_halves(int8_t *X, int64_t rows, int64_t row, int64_t i, h8 q);
#endif

static float quantise(const float *x, int64_t n, int64_t rows, int64_t row, int16_t *X, float *S) {
    const h8 none = {0};
    for (int64_t i = n; i % PAD; i += LANES) PUT(X, rows, row, i, none);
    i8 most = (i8)all(0.0f); /* of the bits without sign, whose order is that of the absolute values, NaN last */
    for (int64_t i = 0; i < n; i += LANES) {
        i8 bits = (i8)load(x + i) & 0x7fffffff;
        i8 more = bits > most;
        most = (more & bits) | (~more & most);
    }
    int32_t bits = 0;
    for (int j = 0; j < LANES; j++) bits = most[j] > bits ? most[j] : bits;
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    if (bits >= 0x7f800000 || largest < 1e-30f) {
        for (int64_t i = 0; i < n; i += LANES) PUT(X, rows, row, i, none);
        for (int64_t s = 0; S && s < n / SPAN; s++) S[s * rows] = 0.0f;
        return bits >= 0x7f800000 ? NAN : 0.0f;
    }
    v8 inverse = all((float)LIMIT / largest), span = all(0.0f); /* whole numbers of at most SPAN * LIMIT: exact in any order */
    for (int64_t i = 0; i < n; i += LANES) {
        i8 whole = nearest(load(x + i) * inverse);
        PUT(X, rows, row, i, __builtin_convertvector(whole, h8));
        if (!S) continue;
        span = (i % SPAN ? span : all(0.0f)) + __builtin_convertvector(whole, v8);
        if (i % SPAN == SPAN - LANES) S[i / SPAN * rows] = total(span);
    }
    return largest / (float)LIMIT;
}

/* The two activations at p as one number, for broadcasts. */
INLINE int32_t pair_at(const int16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pair;
}

INLINE v8 scaled(const float *sums, float xs, const float *ws) { return load(sums) * (all(xs) * load(ws)); }

static void store(const float *sums, int rows, const float *xs, const float *ws, const float *bias, float *out,
                  int64_t stride) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < TILE; n += LANES) {
            v8 y = scaled(sums + r * TILE + n, xs[r], ws + n);
            save(out + r * stride + n, bias ? y + load(bias + n) : y);
        }
}

static void add(const float *sums, int rows, const float *xs, const float *ws, const float *bias, float *out, int64_t stride) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < TILE; n += LANES) {
            v8 y = scaled(sums + r * TILE + n, xs[r], ws + n);
            float *place = out + r * stride + n;
            save(place, load(place) + (bias ? y + load(bias + n) : y));
        }
}

static void gate(const float *sums, int rows, const float *xs, const float *ws, float *out, int64_t stride) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < TILE / 2; n += LANES) {
            v8 g = scaled(sums + r * TILE + n, xs[r], ws + n);
            v8 up = scaled(sums + r * TILE + TILE / 2 + n, xs[r], ws + TILE / 2 + n);
            save(out + r * stride + n, g / (all(1.0f) + exponential(-g)) * up);
        }
}

static void rotate(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

/* Ask for `width` floats ahead of their use: cache slots lie anywhere, which the processor cannot foresee. */
INLINE void fetch(const float *p, int64_t width) {
    for (int64_t d = 0; d < width; d += 16) __builtin_prefetch(p + d);
}

/* Slots s ... s + 7 that lie before `seen`. */
INLINE i8 before(int64_t s, int64_t seen) { return (i8){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)(s - seen) < 0; }

/* Floats from one head's scores to the next one's: the longest list, padded, and one place more. */
INLINE int64_t score_room(const bunch *b) { return (b->longest + LANES - 1) / LANES * LANES; }
INLINE int64_t score_stride(const bunch *b) { return score_room(b) + LANES; }

/* Scores q . keys[slots[s]] / sqrt(width) of all rows and heads for s = from (a multiple of LANES) ... to - 1, eight slots at a time: their
 * keys are read once for all of them. Then each row's score of its own slot, at its last place. Places past a row's `seen` may hold anything. */
static void score(const bunch *b, const float *keys, const float *values, int64_t from, int64_t to, float *scores) {
    int64_t stride = score_stride(b), end = to < b->longest ? to : b->longest;
    v8 scale = all(1.0f / sqrtf((float)b->width));
    for (int64_t s = from; s < end; s += LANES) {
        for (int j = 0; j < LANES && s + j < b->longest; j++) {
            if (b->rows == 1) fetch(values + (int64_t)b->slots[s + j] * b->width, b->width); /* for `mix`, which comes next */
            if (s + j + 2 * LANES < b->longest) fetch(keys + (int64_t)b->slots[s + j + 2 * LANES] * b->width, b->width);
        }
        const float *k[LANES];
        for (int j = 0; j < LANES; j++) k[j] = keys + (int64_t)b->slots[s + j < b->longest ? s + j : b->longest - 1] * b->width;
        for (int64_t r = 0; r < b->rows; r++) {
            if (s >= b->seen[r]) continue;
            for (int64_t g = 0; g < b->group; g++) {
                const float *q = b->q + r * b->q_stride + g * b->width;
                v8 sums[LANES] = {0};
                for (int64_t d = 0; d < b->width; d += LANES) {
                    v8 part = load(q + d);
                    for (int j = 0; j < LANES; j++) sums[j] += part * load(k[j] + d);
                }
                save(scores + (r * b->group + g) * stride + s, totals(sums) * scale);
                ask(b->ahead, 8);
            }
        }
    }
    for (int64_t r = 0; r < b->rows; r++) {
        int64_t last = b->seen[r] - 1;
        if (last < from || last >= end || b->slots[last] == b->own[r]) continue;
        for (int64_t g = 0; g < b->group; g++) {
            const float *q = b->q + r * b->q_stride + g * b->width, *k = keys + b->own[r] * b->width;
            v8 sum = all(0.0f);
            for (int64_t d = 0; d < b->width; d += LANES) sum += load(q + d) * load(k + d);
            scores[(r * b->group + g) * stride + last] = total(sum) * scale[0];
        }
    }
}

/* Scores of one query become e^(score - largest), places past `seen` 0; returns their sum. */
INLINE float soften(float *scores, int64_t seen) {
    v8 most = all(scores[0]), sums = all(0.0f);
    for (int64_t s = 0; s < seen; s += LANES) {
        v8 here = load(scores + s);
        most = choose(before(s, seen) & (here > most), here, most);
    }
    float largest = most[0];
    for (int j = 1; j < LANES; j++) largest = most[j] > largest ? most[j] : largest;
    for (int64_t s = 0; s < seen; s += LANES) {
        v8 e = exponential(load(scores + s) - all(largest));
        e = (v8)((i8)e & before(s, seen));
        save(scores + s, e);
        sums += e;
    }
    return total(sums);
}

/* As wide as a register is; a wider one would go through memory. */
#ifdef __AVX512F__
typedef v16 wide;
#else
typedef v8 wide;
#endif
enum { WIDE = sizeof(wide) / sizeof(float), SUMS = 64 / WIDE };

INLINE wide everywhere(float x) {
#ifdef __AVX512F__
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
    return all(x);
#endif
}

/* out[0 .. 63] += weights[s] * values[slots[s]] for s from ... to - 1, one after the other. */
INLINE void weigh_64(const float *weights, const float *values, const int32_t *slots, int64_t from, int64_t to, int64_t width,
                     float *out, ahead *next) {
    wide sums[SUMS], value;
    UNROLL for (int c = 0; c < SUMS; c++) memcpy(&sums[c], out + c * WIDE, sizeof value);
    for (int64_t s = from; s < to; s++) {
        wide weight = everywhere(weights[s]);
        const float *v = values + (int64_t)slots[s] * width;
        UNROLL for (int c = 0; c < SUMS; c++) {
            memcpy(&value, v + c * WIDE, sizeof value);
            sums[c] += weight * value;
        }
        ask(next, 1);
    }
    UNROLL for (int c = 0; c < SUMS; c++) memcpy(out + c * WIDE, &sums[c], sizeof value);
}

/* out[0 .. 8 * vectors] += weights[s] * values[slots[s]] for s from ... to - 1, one after the other. */
INLINE void weigh(const float *weights, const float *values, const int32_t *slots, int64_t from, int64_t to, int64_t width,
                  int vectors, float *out) {
    v8 sums[2];
    for (int c = 0; c < vectors; c++) sums[c] = load(out + c * LANES);
    for (int64_t s = from; s < to; s++) {
        v8 weight = all(weights[s]);
        const float *v = values + (int64_t)slots[s] * width;
        for (int c = 0; c < vectors; c++) sums[c] += weight * load(v + c * LANES);
    }
    for (int c = 0; c < vectors; c++) save(out + c * LANES, sums[c]);
}

/* `weigh` over columns from ... to - 1 of a head. */
INLINE void weigh_columns(const float *weights, const float *values, const int32_t *slots, int64_t first, int64_t last, int64_t width,
                          int64_t from, int64_t to, float *out, ahead *next) {
    int64_t d = from;
    for (; d + 8 * LANES <= to; d += 8 * LANES) weigh_64(weights, values + d, slots, first, last, width, out + d, next);
    for (; d + 2 * LANES <= to; d += 2 * LANES) weigh(weights, values + d, slots, first, last, width, 2, out + d);
    for (; d < to; d += LANES) weigh(weights, values + d, slots, first, last, width, 1, out + d);
}

/* Scores of all rows and heads become weights, and behind them stands what their sum is divided by. */
static void weights_of(const bunch *b, float *scores) {
    int64_t stride = score_stride(b);
    for (int64_t i = 0; i < b->rows * b->group; i++) {
        float *weights = scores + i * stride;
        weights[score_room(b)] = 1.0f / soften(weights, b->seen[i / b->group]);
    }
}

/* Columns from ... to - 1 (multiples of LANES) of the result. A strip of values is read once for all rows and heads. Sums go through
 * memory between strips, which rounds nothing: whatever shares a strip, every sum is that of one slot after the other. */
static void mix(const bunch *b, const float *values, const float *scores, int64_t from, int64_t to) {
    int64_t stride = score_stride(b), heads = b->rows * b->group;
    for (int64_t i = 0; i < heads; i++)
        memset(b->out + i / b->group * b->out_stride + i % b->group * b->width + from, 0, (size_t)(to - from) * sizeof *b->out);
    for (int64_t first = 0; first < b->longest; first += STRIP)
        for (int64_t i = 0; i < heads; i++) {
            const float *weights = scores + i * stride;
            float *out = b->out + i / b->group * b->out_stride + i % b->group * b->width;
            int64_t last = b->seen[i / b->group] - 1, end = first + STRIP < last ? first + STRIP : last;
            int32_t own = (int32_t)b->own[i / b->group];
            weigh_columns(weights, values, b->slots, first, end, b->width, from, to, out, b->ahead);
            if (first <= last && last < first + STRIP) weigh_columns(weights + last, values, &own, 0, 1, b->width, from, to, out, NULL);
        }
    for (int64_t i = 0; i < heads; i++) {
        float *out = b->out + i / b->group * b->out_stride + i % b->group * b->width;
        for (int64_t d = from; d < to; d += LANES) save(out + d, load(out + d) * all(scores[i * stride + score_room(b)]));
    }
}

#include "best.h"

#define KERNELS(title, most_rows, test, few, least, four, begin, end) \
    {title, most_rows, test, few, least, begin, end, products, four, norm, quantise, store, add, gate, rotate, score, weights_of, mix, best}
