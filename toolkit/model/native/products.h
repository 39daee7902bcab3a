/* Rows as integers and their products with a matrix, shared by the threads of a team; included by pass.c alone. */
#include "native.h"
#include "team.h"
#include <unistd.h>

/* Rows as integers, as the products of one matrix read them. */
typedef struct {
    int16_t *X;    /* [groups][inputs padded to PAD][rows of the group], in the order of the kernel set */
    float *S;      /* [groups][inputs / SPAN][rows of the group] */
    float *scales; /* [rows] */
} integers;

static int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The next `bytes` of the space; base NULL only counts. */
static void *carve(char *base, int64_t *used, int64_t bytes) {
    char *place = base ? base + *used : NULL;
    *used += up(bytes, LINE);
    return place;
}

static void lay_out_integers(int64_t rows, int64_t inputs, char *base, int64_t *used, integers *q) {
    q->scales = carve(base, used, rows * 4);
    q->X = carve(base, used, rows * up(inputs, PAD) * 2 + PAD); /* behind a group that is smaller than the largest a line more is read */
    q->S = carve(base, used, rows * (inputs / SPAN) * 4);
}

/* The set that so many rows are multiplied by: all sets give the same bits. */
static const kernels *fitting(const kernels *k, const linear *w, int64_t rows) {
    return k->few && (rows < k->least || w->bits == 4) ? k->few : k;
}

/* Rows in groups of nearly equal size: group g has rows first(g) ... first(g + 1) - 1. */
static int64_t groups(const kernels *k, int64_t rows) { return (rows + k->rows - 1) / k->rows; }
static int64_t first(const kernels *k, int64_t rows, int64_t g) { return rows * g / groups(k, rows); }

enum { BETWEEN = 96 }; /* lines asked for before a row's work: what memory delivers meanwhile */

/* Quantise row r of `rows` into its place, for products with `w`. */
static void quantise_row(const kernels *k, const linear *w, const float *x, int64_t r, int64_t rows, const integers *q) {
    k = fitting(k, w, rows);
    int64_t g = ((r + 1) * groups(k, rows) - 1) / rows, from = first(k, rows, g), n = w->inputs;
    ask(&wanted, BETWEEN);
    float *S = w->bits == 4 ? q->S + from * (n / SPAN) + (r - from) : NULL;
    q->scales[r] = k->quantise(x, n, first(k, rows, g + 1) - from, r - from, q->X + from * up(n, PAD), S);
}

/* The sums of one tile of 8 bits for some rows, rounded to float once, however many stretches they have. */
static void sums8(const kernels *k, const int8_t *tile, int64_t inputs, const int16_t *X, int rows, float *sums) {
    int32_t part[MOST_ROWS * TILE];
    if (inputs <= STRETCH) {
        k->products(tile, inputs / 2, X, rows, part);
        for (int i = 0; i < rows * TILE; i++) sums[i] = (float)part[i];
        return;
    }
    int64_t whole[MOST_ROWS * TILE] = {0};
    for (int64_t from = 0; from < inputs; from += STRETCH) {
        int64_t count = inputs - from < STRETCH ? inputs - from : STRETCH;
        k->products(tile + from * TILE, count / 2, X + from * rows, rows, part);
        for (int i = 0; i < rows * TILE; i++) whole[i] += part[i];
    }
    for (int i = 0; i < rows * TILE; i++) sums[i] = (float)whole[i];
}

/* The sums of tile `at` for the `rows` rows from row `from` on, which are one group. */
static void tile_sums(const kernels *k, const linear *w, int64_t at, const integers *q, int64_t from, int rows, float *sums) {
    const int16_t *X = q->X + from * up(w->inputs, PAD);
    int64_t spans = w->inputs / SPAN;
    if (w->bits == 8) sums8(k, (const int8_t *)w->tiles + at * TILE * w->inputs, w->inputs, X, rows, sums);
    else k->products4((const uint8_t *)w->tiles + at * spans * SPAN_BYTES, spans, X, q->S + from * spans, rows, sums);
}

/* Bytes of what comes next that a thread asks for at most: half of a second cache, where the system tells its size, within bounds. Threads
 * that share one ask for more together; it then holds the rest no longer than before. */
static int64_t fetched(void) {
    static atomic_long known;
    long bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes) return bytes;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE) / 2;
#endif
    bytes = bytes < 128 << 10 ? 128 << 10 : bytes > 1 << 20 ? 1 << 20 : bytes;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}

/* The tiles of a matrix that this thread takes first, `most` bytes of them: where they begin and end. */
static int64_t own_tiles(const linear *w, int64_t most, const char **from, const char **end) {
    int64_t tiles = up(w->outputs, TILE) / TILE, bytes = w->bits == 8 ? TILE * w->inputs : w->inputs / SPAN * SPAN_BYTES;
    int64_t ranges = crowd < RANGES ? crowd : RANGES, mine = self % ranges, first = tiles * mine / ranges;
    int64_t all = (tiles * (mine + 1) / ranges - first) * bytes;
    *from = (const char *)w->tiles + first * bytes;
    *end = *from + (all < most ? all : most);
    return *end - *from;
}

/* This thread's next products are with `one`, part of which it may have asked for, and `two` (or NULL). */
static void want(const linear *one, const linear *two) {
    const char *at = wanted.at;
    int64_t most = fetched(), left = most - own_tiles(one, most, &wanted.at, &wanted.end);
    if (at > wanted.at && at <= wanted.end) wanted.at = at;
    wanted.then = wanted.then_end = NULL;
    if (two && left > 0) own_tiles(two, left, &wanted.then, &wanted.then_end);
    ask(&wanted, 0); /* on to the second where nothing of the first is left */
}

typedef enum { STORE, ADD, GATE } ending;

/* This thread's share of out = X w: whole tiles, each for all rows, as many rows at a time as the kernel set takes. */
static void product(const kernels *k, const linear *w, const integers *q, int64_t rows, ending how, float *out, int64_t stride,
                    team *t) {
    int64_t tiles = up(w->outputs, TILE) / TILE;
    k = fitting(k, w, rows);
    int64_t parts = groups(k, rows);
    int begun = 0;
    SHARED(tile, tiles) {
        if (k->begin && !begun) k->begin((int)((rows + parts - 1) / parts), parts > 1 && w->inputs <= STRETCH);
        begun = 1;
        const float *ws = w->scale + tile * TILE, *bias = w->bias ? w->bias + tile * TILE : NULL;
        for (int64_t g = 0; g < parts; g++) {
            int64_t r = first(k, rows, g);
            int count = (int)(first(k, rows, g + 1) - r);
            float sums[MOST_ROWS * TILE];
            tile_sums(k, w, tile, q, r, count, sums);
            const float *scales = q->scales + r;
            if (how == STORE) k->store(sums, count, scales, ws, bias, out + r * stride + tile * TILE, stride);
            if (how == ADD) k->add(sums, count, scales, ws, bias, out + r * stride + tile * TILE, stride);
            if (how == GATE) k->gate(sums, count, scales, ws, out + r * stride + tile * TILE / 2, stride);
        }
    }
    if (k->end && begun) k->end();
}
