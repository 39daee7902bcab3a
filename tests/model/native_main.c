/* Runs the native pass on small shapes with memory of exactly the stated sizes, for a build with sanitizers.
 * Prints a line for each shape; ends with 1 if kernel sets, threads or the cut of the rows change a bit. */
#define _DEFAULT_SOURCE /* for mmap's flags */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint32_t seed = 1;
static float random_float(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
}

/* Weights and spaces, aligned as torch's are. Walled ones end at a page that nobody may touch: tile instructions are no code of the
 * compiler's, so that its sanitizers do not see what they read. */
static int walled;
static void *memory(int64_t bytes) {
    enum { PAGE = 4096 };
    size_t size = (size_t)((bytes + 63) / 64 * 64), pages = (size + PAGE - 1) / PAGE;
    if (!walled) return aligned_alloc(64, size);
    char *base = mmap(NULL, (pages + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + pages * PAGE, PAGE, PROT_NONE)) abort();
    memset(base, 0x5a, pages * PAGE);
    return base + pages * PAGE - size;
}
static void give(void *p) {
    if (!walled) free(p);
}

static float *floats(int64_t n) {
    float *p = malloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = random_float();
    return p;
}

static linear weights(int64_t outputs, int64_t inputs, int biased, int bits) {
    int64_t padded = (outputs + TILE - 1) / TILE * TILE;
    if (bits == 4) { /* any bits are weights; steps and offsets are halves of 0.5 ... 2 of either sign, scales powers of two */
        int64_t spans = inputs / SPAN, bytes = padded / TILE * spans * SPAN_BYTES;
        uint8_t *tiles = memory(bytes);
        float *scale = malloc((size_t)padded * sizeof *scale);
        for (int64_t i = 0; i < bytes; i++) tiles[i] = (uint8_t)(random_float() * 128.0f + 128.0f);
        for (int64_t s = 0; s < padded / TILE * spans; s++)
            for (int i = 1; i < SPAN_HEAD; i += 2) tiles[s * SPAN_BYTES + i] = (uint8_t)(0x38 + tiles[s * SPAN_BYTES + i] % 8) | (i & 2 ? 0x80 : 0);
        for (int64_t n = 0; n < padded; n++) scale[n] = n % 2 ? 0.03125f : 0.0625f;
        return (linear){tiles, scale, biased ? floats(padded) : NULL, outputs, inputs, 4};
    }
    int8_t *tiles = memory(padded * inputs);
    float *scale = calloc((size_t)padded, sizeof *scale), *weight = floats(outputs * inputs);
    memset(tiles, 0, (size_t)(padded * inputs));
    native_pack(weight, outputs, inputs, 2, tiles, scale);
    free(weight);
    return (linear){tiles, scale, biased ? floats(padded) : NULL, outputs, inputs, 8};
}

static void drop(linear w) {
    give((void *)w.tiles);
    free((void *)w.scale);
    free((void *)w.bias);
}

enum { ROWS = 19, CONTEXT = 32, SLOTS = 23 };

/* Hidden rows and logits of ROWS tokens, the first `cut` of them in a pass of their own. inputs: rows to start from, or NULL.
 * residuals [2][ROWS][hidden]: the rows before each layer. */
static void run(const model *m, int64_t cut, int64_t threads, const float *inputs, float *hidden, float *logits, float *residuals) {
    int64_t cache = m->layers * m->kv_heads * SLOTS * m->head_dim;
    float *keys = floats(cache), *values = floats(cache);
    int32_t *slots = malloc(ROWS * sizeof *slots);
    for (int i = 0; i < ROWS; i++) slots[i] = (i * 5 + 3) % SLOTS;
    for (int64_t from = 0; from < ROWS; from = from ? ROWS : cut) {
        int64_t rows = from ? ROWS - from : cut, longest = from + rows;
        int64_t *numbers = malloc((size_t)rows * 5 * sizeof *numbers);
        for (int64_t r = 0; r < rows; r++) {
            numbers[r] = (from + r) * 7 % m->head.outputs;  /* token */
            numbers[rows + r] = from + r;                   /* position */
            numbers[2 * rows + r] = slots[from + r];        /* own */
            numbers[3 * rows + r] = 0;                      /* first */
            numbers[4 * rows + r] = from + r + 1;           /* seen */
        }
        pass p = {rows, threads, SLOTS, longest, numbers, numbers + rows, numbers + 2 * rows, numbers + 3 * rows, numbers + 4 * rows,
                  slots, keys, values, hidden + from * m->hidden, memory(native_space(m, rows, longest, threads)),
                  inputs ? inputs + from * m->hidden : NULL, (int64_t[]){0, 1}, 2, floats(2 * rows * m->hidden), CONTEXT, ROWS};
        if (native_forward(m, &p)) abort();
        for (int d = 0; d < 2; d++)
            memcpy(residuals + (d * ROWS + from) * m->hidden, p.residuals + d * rows * m->hidden, (size_t)(rows * m->hidden) * 4);
        free(p.residuals);
        give(p.space);
        free(numbers);
    }
    void *space = memory(native_linear_space(&m->head, ROWS));
    native_linear(&m->head, m->kernels, hidden, ROWS, threads, logits, space);
    give(space);
    free(keys);
    free(values);
    free(slots);
}

static int check(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t intermediate, int64_t vocabulary,
                 int extras, int bare, int bits) {
    int64_t qkv = (heads + 2 * kv_heads) * head_dim, padded = (vocabulary + TILE - 1) / TILE * TILE;
    layer l = {weights(qkv, hidden, extras, bits),     weights(hidden, heads * head_dim, extras, bits),
               weights(2 * intermediate, hidden, 0, bits), weights(hidden, intermediate, 0, bits),
               floats(hidden),                         floats(hidden),
               extras ? floats(head_dim) : NULL,       extras ? floats(head_dim) : NULL};
    layer both[2] = {l, l};
    model m = {hidden, 2, heads, kv_heads, head_dim, intermediate, 1e-5f, 0, both, floats(hidden), weights(vocabulary, hidden, 0, 8),
               {0}, floats(CONTEXT * head_dim / 2), floats(CONTEXT * head_dim / 2), NULL};
    const float *norm = m.norm;
    m.embedding = m.head;
    if (bare) m.norm = both[0].attention_norm = both[1].attention_norm = NULL;
    const int64_t all = ROWS * (3 * hidden + padded);
    float *expected = floats(all), *found = floats(all), *inputs = bare ? floats(ROWS * hidden) : NULL;
    int wrong = 0;
    for (int kernel_set = native_kernels() - 1; kernel_set >= 0; kernel_set--) {
        if (!native_kernel_usable(kernel_set)) continue;
        m.kernels = kernel_set;
        for (int64_t threads = 1; threads <= 3; threads++)
            for (int64_t cut = 1; cut <= ROWS; cut += 6) {
                int first = kernel_set == native_kernels() - 1 && threads == 1 && cut == 1;
                float *out = first ? expected : found;
                run(&m, cut, threads, inputs, out, out + 3 * ROWS * hidden, out + ROWS * hidden);
                if (memcmp(expected, out, (size_t)all * sizeof *out)) {
                    printf("%s differs with %d threads, cut at %d\n", native_kernel_name(kernel_set), (int)threads, (int)cut);
                    wrong = 1;
                }
            }
    }
    printf("%d bits, hidden %d heads %d/%d x %d: %s\n", bits, (int)hidden, (int)heads, (int)kv_heads, (int)head_dim, wrong ? "WRONG" : "equal");
    drop(l.qkv);
    drop(l.o);
    drop(l.gate_up);
    drop(l.down);
    drop(m.head);
    for (int i = 0; i < 4; i++) free((void *)(&l.attention_norm)[i]);
    free((void *)norm);
    free(inputs);
    free((void *)m.cos);
    free((void *)m.sin);
    free(expected);
    free(found);
    return wrong;
}

/* Rows of `n` logits that end where their memory does, masks of every density. */
static int check_best(int64_t n) {
    enum { MANY = 5, COUNT = 3 };
    int64_t words = (n + 31) / 32, found[2][MANY];
    const float *rows[MANY];
    uint32_t *mask = malloc((size_t)(MANY * words) * sizeof *mask);
    float norms[2][MANY * 2], values[2][MANY * COUNT];
    int32_t ids[2][MANY * COUNT];
    for (int r = 0; r < MANY; r++) {
        rows[r] = floats(n);
        for (int64_t w = 0; w < words; w++) mask[r * words + w] = random_float() * 4 < r - 2 ? (uint32_t)(random_float() * 1e9f) : 0;
    }
    int wrong = 0;
    for (int masked = 0; masked < 2; masked++)
        for (int kernel_set = native_kernels() - 1; kernel_set >= 0; kernel_set--)
            for (int64_t threads = 1; native_kernel_usable(kernel_set) && threads <= 3; threads++) {
                int at = kernel_set != native_kernels() - 1 || threads > 1; /* 0: what the others are compared with */
                memset(ids[at], 0, sizeof *ids);
                native_best(kernel_set, rows, MANY, n, masked ? mask : NULL, COUNT, threads, norms[at], found[at], ids[at], values[at]);
                if (at) wrong |= memcmp(norms[0], norms[1], sizeof *norms) || memcmp(ids[0], ids[1], sizeof *ids);
            }
    for (int r = 0; r < MANY; r++) free((void *)rows[r]);
    free(mask);
    printf("best of %d: %s\n", (int)n, wrong ? "WRONG" : "equal");
    return wrong;
}

/* Guesses of a draft head behind the last rows of a line, whose slots end where their memory does. `out`: all that is told of them. */
enum { GUESSES = 4, ALTERNATIVES = 3, TOLD = GUESSES * (1 + ALTERNATIVES) };
static int64_t guess(const model *m, int64_t rows, int64_t threads, const float *inputs, const int64_t *known, float least, float *out,
                     int32_t *ids) {
    int64_t cache = m->layers * m->kv_heads * SLOTS * m->head_dim, end = rows + 5, *tokens = malloc((size_t)rows * sizeof *tokens);
    seed = 7; /* the same keys and values of earlier places */
    float *keys = floats(cache), *values = floats(cache), *hidden = malloc((size_t)(rows * m->hidden) * sizeof *hidden);
    int32_t *slots = malloc((size_t)(end + GUESSES - 1) * sizeof *slots);
    for (int64_t i = 0; i < end + GUESSES - 1; i++) slots[i] = (int32_t)((i * 5 + 3) % SLOTS);
    for (int64_t r = 0; r < rows; r++) tokens[r] = r * 7 % m->entry->embedding.outputs;
    line l = {rows, threads, SLOTS, CONTEXT, end, CONTEXT - rows - GUESSES + 1, tokens, slots, keys, values, hidden, inputs, NULL};
    guesses g = {GUESSES, ALTERNATIVES, least, 0.5f, known, 0, out, ids, out + GUESSES};
    l.space = memory(native_guess_space(m, &l, GUESSES));
    int wrong = native_guess(m, &l, &g);
    l.place++;
    if (native_guess(m, &l, &(guesses){GUESSES, ALTERNATIVES, least, 0.5f, known, 0, NULL, NULL, NULL}) != 3) wrong = 1;
    give(l.space), free(keys), free(values), free(hidden), free(slots), free(tokens);
    return wrong ? -1 : g.made;
}

static int check_guesses(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t vocabulary, int64_t drafted) {
    int64_t qkv = (heads + 2 * kv_heads) * head_dim;
    draft_entry e = {weights(hidden, 2 * hidden, 1, 8), weights(vocabulary, hidden, 0, 8), floats(hidden), floats(hidden)};
    layer l = {weights(qkv, hidden, 0, 8), weights(hidden, heads * head_dim, 0, 8), weights(2 * hidden, hidden, 0, 8),
               weights(hidden, hidden, 0, 8), floats(hidden), floats(hidden), NULL, NULL};
    model m = {hidden, 1, heads, kv_heads, head_dim, hidden, 1e-5f, 0, &l, NULL, weights(drafted, hidden, 0, 8), {0},
               floats(CONTEXT * head_dim / 2), floats(CONTEXT * head_dim / 2), &e};
    int64_t *known = malloc((size_t)drafted * sizeof *known);
    for (int64_t i = 0; i < drafted; i++) known[i] = i * vocabulary / drafted;
    float *inputs = floats(13 * hidden), told[2][4 * (1 + ALTERNATIVES)];
    int32_t few[2][4 * ALTERNATIVES];
    int wrong = 0;
    for (int64_t rows = 1; rows <= 13; rows += 6) {
        float out[2][TOLD];
        int32_t ids[2][GUESSES * ALTERNATIVES];
        for (int kernel_set = native_kernels() - 1; kernel_set >= 0; kernel_set--)
            for (int64_t threads = 1; native_kernel_usable(kernel_set) && threads <= 3; threads++) {
                int at = kernel_set != native_kernels() - 1 || threads > 1;
                m.kernels = kernel_set;
                wrong |= guess(&m, rows, threads, inputs, known, -1e30f, out[at], ids[at]) != GUESSES;
                if (at) wrong |= memcmp(out[0], out[1], sizeof *out) || memcmp(ids[0], ids[1], sizeof *ids);
                wrong |= guess(&m, rows, threads, inputs, known, 1.0f, out[at], ids[at]) != 1;
                void *space = memory(native_likeliest_space(&m.head, 4));
                native_likeliest(&m.head, kernel_set, inputs, 4, ALTERNATIVES, threads, told[at], few[at], told[at] + 4, space);
                give(space);
                if (at) wrong |= memcmp(told[0], told[1], sizeof *told) || memcmp(few[0], few[1], sizeof *few);
                wrong |= !(told[at][0] >= told[at][4] && told[at][4] >= told[at][5] && told[at][5] >= told[at][6]);
            }
    }
    drop(e.weights), drop(e.embedding), drop(l.qkv), drop(l.o), drop(l.gate_up), drop(l.down), drop(m.head);
    free((void *)e.embed_norm), free((void *)e.input_norm), free((void *)l.attention_norm), free((void *)l.mlp_norm);
    free((void *)m.cos), free((void *)m.sin), free(known), free(inputs);
    printf("guesses, hidden %d: %s\n", (int)hidden, wrong ? "WRONG" : "equal");
    return wrong;
}

/* Three rows that see hundreds of slots, in lists that end where their memory does: threads split their attention. */
static int check_far(int64_t heads, int64_t kv_heads, int64_t head_dim) {
    enum { FAR_SLOTS = 601, FEW = 3 };
    int64_t hidden = heads * head_dim, cache = kv_heads * FAR_SLOTS * head_dim, numbers[5 * FEW];
    layer l = {weights((heads + 2 * kv_heads) * head_dim, hidden, 0, 8), weights(hidden, hidden, 0, 8), weights(2 * hidden, hidden, 0, 8),
               weights(hidden, hidden, 0, 8), floats(hidden), floats(hidden), NULL, NULL};
    model m = {hidden, 1, heads, kv_heads, head_dim, hidden, 1e-5f, 0, &l, NULL, weights(97, hidden, 0, 8),
               {0}, floats(CONTEXT * head_dim / 2), floats(CONTEXT * head_dim / 2), NULL};
    m.embedding = m.head;
    int32_t *slots = malloc((FAR_SLOTS - 1) * sizeof *slots);
    for (int i = 0; i < FAR_SLOTS - 1; i++) slots[i] = (i * 7 + 3) % FAR_SLOTS;
    for (int r = 0; r < FEW; r++) {
        numbers[r] = r, numbers[FEW + r] = r, numbers[3 * FEW + r] = 0, numbers[4 * FEW + r] = FAR_SLOTS - 1 - (r == 1);
        numbers[2 * FEW + r] = r == 1 ? slots[FAR_SLOTS - 3] : ((FAR_SLOTS - 2 + r / 2) * 7 + 3) % FAR_SLOTS;
    }
    float *expected = floats(FEW * hidden), *found = floats(FEW * hidden);
    int wrong = 0;
    for (int kernel_set = native_kernels() - 1; kernel_set >= 0; kernel_set--)
        for (int64_t threads = 1; native_kernel_usable(kernel_set) && threads <= 3; threads++) {
            int first = kernel_set == native_kernels() - 1 && threads == 1;
            m.kernels = kernel_set;
            seed = 11; /* the same keys and values */
            float *keys = floats(cache), *values = floats(cache);
            pass p = {FEW, threads, FAR_SLOTS, FAR_SLOTS - 1, numbers, numbers + FEW, numbers + 2 * FEW, numbers + 3 * FEW, numbers + 4 * FEW,
                      slots, keys, values, first ? expected : found, memory(native_space(&m, FEW, FAR_SLOTS - 1, threads)), NULL, NULL, 0, NULL,
                      CONTEXT, FAR_SLOTS - 1};
            wrong |= native_forward(&m, &p);
            wrong |= !first && memcmp(expected, found, (size_t)(FEW * hidden) * sizeof *found);
            slots[5] = FAR_SLOTS;
            wrong |= native_forward(&m, &p) != 4;
            slots[5] = (5 * 7 + 3) % FAR_SLOTS;
            give(p.space), free(keys), free(values);
        }
    drop(l.qkv), drop(l.o), drop(l.gate_up), drop(l.down), drop(m.head);
    free((void *)l.attention_norm), free((void *)l.mlp_norm), free((void *)m.cos), free((void *)m.sin);
    free(slots), free(expected), free(found);
    printf("far, heads %d/%d x %d: %s\n", (int)heads, (int)kv_heads, (int)head_dim, wrong ? "WRONG" : "equal");
    return wrong;
}

int main(void) {
    int wrong = check(32, 4, 2, 8, 64, 261, 0, 0, 8);
    wrong |= check(48, 6, 2, 24, 80, 97, 1, 0, 8);
    wrong |= check(8, 1, 1, 72, 2 * STRETCH + 16, 33, 0, 0, 8);
    wrong |= check(32, 4, 2, 8, 64, 97, 0, 1, 8);
    wrong |= check(64, 8, 2, 24, 96, 97, 1, 0, 4);
    wrong |= check_guesses(32, 4, 2, 8, 97, 64) | check_guesses(48, 6, 2, 24, 261, 37);
    wrong |= check_far(4, 1, 24) | check_far(2, 1, 64);
    wrong |= check_best(1) | check_best(37) | check_best(1031);
    walled = 1;
    wrong |= check(48, 6, 2, 24, 80, 97, 1, 0, 8) | check(8, 1, 1, 72, 2 * STRETCH + 16, 33, 0, 0, 8) | check_far(4, 1, 24);
    wrong |= check_guesses(48, 6, 2, 24, 261, 37);
    return wrong;
}
