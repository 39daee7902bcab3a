/* The native pass: a Llama-like decoder over ragged rows, weights of 8 or 4 bits, 14-bit activations, exact integer sums.
 *
 * One matrix product, out[m][n] = sum_k x[m][k] * w[n][k], is computed as
 *
 *     w[n][k] ~ ws[n] * W[n][k]       W int8,  |W| <= 127,   ws[n] = max_k |w[n][k]| / 127      (once, at load)
 *     x[m][k] ~ xs[m] * X[m][k]       X int16, |X| <= 8191,  xs[m] = max_k |x[m][k]| / 8191     (for every row)
 *     out[m][n] = (float)(sum_k X[m][k] * W[n][k]) * (xs[m] * ws[n]) (+ bias[n])
 *
 * The sum is exact: stretches of at most STRETCH inputs in int32 (STRETCH * 127 * 8191 < 2^31), stretches in int64. So its
 * value depends neither on the order of summation nor on the instruction set, and a row's result depends on no other row.
 *
 * A matrix of 4 bits has a step d and an offset o for every span of 32 inputs of an output:
 *
 *     w[n][k] ~ ws[n] * (d[n][s] * W[n][k] + o[n][s])      W 0 ... 15,  s = k / SPAN,  d and o in half precision,  ws[n] a power of two
 *     out[m][n] = (sum_s (d[n][s] * (float)P + o[n][s] * (float)S)) * (xs[m] * ws[n]) (+ bias[n])
 *         P = sum_{k in s} X[m][k] * W[n][k]     S = sum_{k in s} X[m][k]
 *
 * P and S are exact, as integers and as floats (SPAN * 15 * 8191 < 2^24). The sum over spans is one lane an output, spans in
 * rising order, both products and both sums rounded one by one: again one order for every kernel set and number of rows. ws
 * brings the largest weight of an output to 1 ... 2 (down to weights of 2^-101), so that half precision is fine enough for any weights. This is the form of
 * GGUF's Q4_1: a matrix that was stored so is represented exactly. Embedding and head always have 8 bits.
 *
 * What is not exact (norms, softmax, the sums of attention) is written with eight lanes and one fixed order, without fused
 * multiply-adds, so the same holds for the whole pass: for one sequence, every bit of its hidden rows and logits is the same
 * alone, in a batch, after another chunking of its prompt, for any number of threads and for every kernel set.
 *
 * Weight layout ("tiles"). 32 outputs are one tile; inputs go in pairs, so 32 outputs x 2 inputs are one cache line:
 *
 *     tile[n / 32][k / 2][n % 32][k % 2]                          int8
 *
 * A register of int16 pairs times one broadcast pair of activations gives one int32 lane for each output, without horizontal
 * sums. A widened line is used for several rows before the next one is loaded: rows are taken in groups of at most
 * kernels.rows, and the activations of a group lie side by side, X[pair][row in group][2].
 *
 * 4 bits: a span of a tile is 32 steps, 32 offsets and 8 lines of 64 bytes, each of 4 inputs:
 *
 *     tile[n / 32][k / 32]:  half d[32], half o[32], uint8 line[k % 32 / 4][n % 32][k % 2]     bits 0-3: inputs 0 and 1 of the four, bits 4-7: 2 and 3
 *
 * so that a widened line, masked or shifted, is two registers of pairs as above.
 *
 * Memory: a pass reads its weights once, and would be bound by that if it were not idle while rows are rounded, rotated and attended to. So a
 * thread asks for its part of the next matrices, as much as half of its second cache holds, in those stages and where it waits for
 * others (`ahead`), and for the keys and values of a layer before the product in front of them.
 *
 * Threads: one OpenMP region a pass, inside which they take work items from ranges of their own, then others', and meet at barriers that spin briefly
 * and then yield. How long OpenMP's idle threads spin after a pass is libgomp's GOMP_SPINCOUNT. Knows nothing about: tokens
 * as text, blocks, sequences: a row has a list of cache slots and attends to the first of them and its own. Types and shapes of what comes
 * in were checked by the caller (decoder.py); integers that point somewhere are checked here, where that costs next to nothing.
 */
#ifndef TOOLKIT_NATIVE_H
#define TOOLKIT_NATIVE_H

#include <stddef.h>
#include <stdint.h>

enum { MOST_ROWS = 16 }; /* no kernel set takes larger groups */
enum { LANES = 8, TILE = 32, PAD = 64, LIMIT = 8191, STRETCH = 2048 }; /* PAD: what inputs of rows are padded to */
enum { SPAN = 32, SPAN_HEAD = 4 * TILE, SPAN_BYTES = SPAN_HEAD + TILE * SPAN / 2 }; /* of 4-bit tiles; HEAD: steps and offsets */
enum { CACHE_LINE = 64 };
enum { AHEAD = 3072 }; /* bytes of weights that are prefetched: a page and memory's latency, less what hardware does itself */

/* out x in weights as tiles; outputs are padded with zeros to a multiple of TILE, inputs is a multiple of LANES (SPAN at 4 bits). */
typedef struct {
    const void *tiles;
    const float *scale; /* [outputs] */
    const float *bias;  /* [outputs] or NULL */
    int64_t outputs, inputs;
    int32_t bits; /* 8 or 4 */
} linear;

/* One layer. In gate_up every tile holds 16 gates and the 16 ups that belong to them. */
typedef struct {
    linear qkv, o, gate_up, down;
    const float *attention_norm, *mlp_norm; /* [hidden] or NULL: rows are taken as they are */
    const float *q_norm, *k_norm;           /* [head_dim] or NULL */
} layer;

/* How a draft head begins: weights [embedding of the row's token ; the row that comes in], each after its norm (or NULL). */
typedef struct {
    linear weights;   /* hidden x 2 hidden */
    linear embedding; /* the target's */
    const float *embed_norm, *input_norm;
} draft_entry;

typedef struct {
    int64_t hidden, layers, heads, kv_heads, head_dim, intermediate;
    float epsilon;
    int32_t kernels; /* index into the table of kernel sets */
    const layer *layer;
    const float *norm;      /* [hidden] or NULL: the last residual rows are the result */
    linear head;            /* vocabulary x hidden */
    linear embedding;       /* vocabulary x hidden, 8 bits; the head itself where tied */
    const float *cos, *sin; /* [context][head_dim / 2] */
    const draft_entry *entry;     /* or NULL: the layers start from embeddings or inputs as they are */
} model;

/* One pass over `rows` rows. Row r attends to slots[first[r]] ... slots[first[r] + seen[r] - 2] and then to its own, whatever the list has
 * there: siblings of a draft tree share a list. */
typedef struct {
    int64_t rows, threads, slots_all, longest; /* cache slots of a layer and head; no row sees more than `longest` */
    const int64_t *tokens, *positions, *own;   /* [rows]; own: the slot that takes the row's key and value */
    const int64_t *first, *seen;               /* [rows] */
    const int32_t *slots;
    float *keys, *values; /* [layers][kv_heads][slots_all][head_dim] */
    float *hidden;        /* out: [rows][hidden], after the final norm */
    void *space;          /* native_space(...) bytes, on a cache line */
    const float *inputs;  /* [rows][hidden] to start from, or NULL: the embeddings of tokens; never NULL with an entry */
    const int64_t *depths; /* [depths_all] layers, rising; the residual rows before each of them are wanted too */
    int64_t depths_all;
    float *residuals; /* out: [depths_all][rows][hidden] */
    int64_t context, listed; /* positions that the rotation tables have; entries of slots */
} pass;

/* Guesses of a draft head, one after the other: the likeliest follows the last row of a pass, the next one follows that guess. */
typedef struct {
    int64_t most, count;   /* guesses in a row at most, and alternatives that are told of each */
    float least;           /* log of the joint probability below which no further guess is made */
    float by;              /* what logits are multiplied with: 1 / temperature */
    const int64_t *tokens; /* [head outputs]: the target's token of every row of the head, which has no bias */
    int64_t made;          /* out: guesses */
    float *norms;          /* out: [most], of logits times `by`; NaN where one is not finite: the last guess is then none */
    int32_t *ids;          /* out: [most][count], rows of the head, the likeliest first */
    float *values;         /* out: [most][count] */
} guesses;

/* The last rows of one line of slots, each of which sees all before it; behind them slots for guesses. */
typedef struct {
    int64_t rows, threads, slots_all, context; /* rows: at least one; context: places that the model knows */
    int64_t end, place;                        /* slots of the line, the rows' own included; place of the first row */
    const int64_t *tokens;                     /* [rows] */
    const int32_t *slots;                      /* [end + most - 1] */
    float *keys, *values, *hidden;             /* as in `pass` */
    const float *inputs;
    void *space; /* native_guess_space(...) bytes, on a cache line */
} line;

/* What is read of one row of logits: log-sums over all tokens (NaN where one is not finite) and over the allowed ones, and the
 * likeliest of these. */
typedef struct {
    float norm, legal;
    int64_t found;
    int32_t *ids;  /* [count] */
    float *values; /* [count] */
} choice;

/* Weights of the next products: asked for, line after line, while something else is computed, so that memory is idle as little as can be.
 * First [at, end), then [then, then_end). */
typedef struct {
    const char *at, *end, *then, *then_end;
} ahead;

/* Ask for some lines of it, into the second cache. */
static inline void ask(ahead *a, int lines) {
    if (!a) return;
    for (int i = 0; i < lines && a->at < a->end; i++, a->at += CACHE_LINE) __builtin_prefetch(a->at, 0, 2);
    if (a->at >= a->end && a->then) a->at = a->then, a->end = a->then_end, a->then = NULL;
}

/* Rows that share a list of cache slots, of which row r sees the first seen[r] - 1 and then its own, and one head of keys and values. */
typedef struct {
    const float *q; /* of the first row: `group` query heads [group][width] */
    float *out;     /* likewise */
    int64_t rows, group, width, q_stride, out_stride; /* floats from one row's to the next one's */
    const int32_t *slots;
    const int64_t *seen, *own;
    int64_t longest; /* the most that one of them sees */
    ahead *ahead;    /* or NULL */
} bunch;

/* One instruction set's versions of everything that takes time. All sets give the same bits. */
typedef struct kernels {
    const char *name;
    int rows; /* most rows that `products` takes at once */
    int (*usable)(void);
    const struct kernels *few; /* or NULL: the set that is given fewer than `least` rows, and matrices of 4 bits */
    int64_t least;
    /* or NULL: around the products of one matrix on a thread, with the largest group of rows and whether a tile comes again for the next group */
    void (*begin)(int rows, int again);
    void (*end)(void);
    /* sums[r][n] = sum over `pairs` pairs of one tile with X, the rows as `quantise` wrote them, exact for at most STRETCH inputs */
    void (*products)(const int8_t *tile, int64_t pairs, const int16_t *X, int rows, int32_t *sums);
    /* the same of a tile of 4 bits, or NULL: sums[r][n] over `spans` spans as told above, S [span][rows] */
    void (*products4)(const uint8_t *tile, int64_t spans, const int16_t *X, const float *S, int rows, float *sums);
    /* y = x / rms(x) * weight; x and y may be the same */
    void (*norm)(const float *x, const float *weight, int64_t n, float epsilon, float *y);
    /* row `row` of X[pair][rows][2] (in most sets), n padded to PAD, its scale, and S[span][rows] (or NULL); the scale of a row that is
     * not finite is NaN */
    float (*quantise)(const float *x, int64_t n, int64_t rows, int64_t row, int16_t *X, float *S);
    /* `sums` below are those of `products`, rounded to float, or of `products4`. out[r][n] = sums * (xs[r] * ws[n]) + bias[n] (or NULL), or added to out */
    void (*store)(const float *sums, int rows, const float *xs, const float *ws, const float *bias, float *out, int64_t stride);
    void (*add)(const float *sums, int rows, const float *xs, const float *ws, const float *bias, float *out, int64_t stride);
    /* out[r][0..15] = silu(gate) * up of one tile */
    void (*gate)(const float *sums, int rows, const float *xs, const float *ws, float *out, int64_t stride);
    /* rotate one head in place */
    void (*rotate)(float *head, const float *cos, const float *sin, int64_t half);
    /* attention of a bunch, in three steps each of which can be shared: scores [rows][group][longest rounded up to LANES, and LANES more] of
     * the slots from ... to - 1 of the list, weights of all, columns from ... to - 1 of the result; all of them multiples of LANES, or the end */
    void (*score)(const bunch *b, const float *keys, const float *values, int64_t from, int64_t to, float *scores);
    void (*weights_of)(const bunch *b, float *scores);
    void (*mix)(const bunch *b, const float *values, const float *scores, int64_t from, int64_t to);
    /* one row of logits x [n]; mask: bit i % 32 of word i / 32, or NULL: every token is allowed */
    void (*best)(const float *x, int64_t n, const uint32_t *mask, int64_t count, choice *to);
} kernels;

extern const kernels kernels_portable;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TOOLKIT_X86 1
extern const kernels kernels_avx2, kernels_avx512, kernels_avx512_vnni;
#endif
#if defined(TOOLKIT_X86) && defined(__linux__) && __GNUC__ >= 11
#define TOOLKIT_AMX 1
extern const kernels kernels_amx;
#endif
#if defined(__aarch64__)
extern const kernels kernels_neon;
#endif

/* Exported. */
int native_version(void);                 /* raised whenever a structure above changes */
int native_kernels(void);                 /* how many kernel sets this build has, best first */
const char *native_kernel_name(int index);
int native_kernel_usable(int index);      /* by this processor */
int64_t native_space(const model *m, int64_t rows, int64_t longest, int64_t threads);
/* Checks its integers by itself: 0, or what is out of bounds: 1 tokens, 2 positions, 3 own, 4 slots, 5 first and seen; then nothing was done. */
int native_forward(const model *m, const pass *p);
/* out [rows][outputs padded to TILE] of x [rows][inputs], by kernel set `index`; space as for native_space */
int64_t native_linear_space(const linear *w, int64_t rows);
void native_linear(const linear *w, int index, const float *x, int64_t rows, int64_t threads, float *out, void *space);
/* 8-bit tiles and scale (both zero before, outputs padded) of a finite weight [outputs][inputs] */
void native_pack(const float *weight, int64_t outputs, int64_t inputs, int64_t threads, int8_t *tiles, float *scale);
/* norms [rows][2] (over all, over the allowed), found [rows], ids and values [rows][count] of rows of n logits that lie anywhere;
 * mask [rows][ceil(n / 32)] or NULL */
void native_best(int index, const float *const *x, int64_t rows, int64_t n, const uint32_t *mask, int64_t count, int64_t threads,
                 float *norms, int64_t *found, int32_t *ids, float *values);
/* A pass over a line's last rows, then guesses behind them, through a model with an entry. Checks by itself, since it is called between the
 * passes of a target, where every step of the caller's is slow: 0, or what is out of bounds: 1 a token, 2 a slot, 3 a place; then
 * nothing was done. */
int64_t native_guess_space(const model *m, const line *l, int64_t most);
int native_guess(const model *m, const line *l, guesses *g);
/* The likeliest `count` outputs of w for rows x [rows][inputs], and their log-sum: norms [rows], NaN where a logit is not finite;
 * ids and values [rows][count], the likeliest first; w has at least `count` outputs and no bias */
int64_t native_likeliest_space(const linear *w, int64_t rows);
void native_likeliest(const linear *w, int index, const float *x, int64_t rows, int64_t count, int64_t threads, float *norms,
                      int32_t *ids, float *values, void *space);
/* give memory that was freed back to the system, where the C library can */
void native_trim(void);
/* one row at a time, for the tests of the parts */
void native_norm(int index, const float *x, const float *weight, int64_t n, float epsilon, float *y);
float native_quantise(int index, const float *x, int64_t n, int16_t *X); /* as pairs: by its `few` where a set has one; X has n padded to PAD */
void native_attend(int index, const float *q, int64_t group, int64_t width, const float *keys, const float *values,
                   const int32_t *slots, int64_t seen, float *scores, float *out);

#endif
