/* The pass: which kernel runs on what, in which order, shared between threads how. See native.h for what is computed. */
#include "native.h"
#include "products.h"

#include <math.h>
#if defined(__linux__)
#include <malloc.h>
#endif
#include <string.h>

static const kernels *const TABLE[] = {
#ifdef TOOLKIT_AMX
    &kernels_amx,
#endif
#ifdef TOOLKIT_X86
    &kernels_avx512_vnni,
    &kernels_avx512,
    &kernels_avx2,
#endif
#if defined(__aarch64__)
    &kernels_neon,
#endif
    &kernels_portable,
};

int native_version(void) { return 6; }
int native_kernels(void) { return (int)(sizeof TABLE / sizeof *TABLE); }
const char *native_kernel_name(int index) { return TABLE[index]->name; }
int native_kernel_usable(int index) { return TABLE[index]->usable(); }

/* ---- memory of a pass ---------------------------------------------------------------------------------------------- */

enum { TOGETHER = 8 }; /* most rows that attend together */
enum { FAR = 512, SLOTS = 256, COLUMNS = 16 }; /* slots of lists whose work is split, of a piece of it; columns of a piece */

typedef struct {
    team *team;
    float *x, *qkv, *attended, *act; /* [rows][stride]: residual rows, projections, their attention, gated activations */
    integers q;                      /* the rows of the next product */
    float *row, *scores;             /* of each thread: one row, scores of one bunch of rows */
    int64_t *bunch, bunches;         /* first row of every bunch that attends together, then `rows` */
    int64_t split, row_scores;       /* whether threads share the bunches' work; then scores of each head of a row have so many places */
    int64_t x_stride, qkv_stride, attended_stride, act_stride, row_stride, scores_stride;
} space;

/* Rows of a pass whose work may be split. */
static int64_t split_rows(const model *m, int64_t rows, int64_t threads) {
    int64_t bound = (threads / (2 * m->kv_heads) + 1) * TOGETHER;
    return rows < bound ? rows : bound;
}

static int64_t lay_out(const model *m, int64_t rows, int64_t longest, int64_t threads, char *base, space *s) {
    int64_t used = 0, group = m->heads / m->kv_heads;
    s->x_stride = up(m->hidden, TILE);
    s->qkv_stride = up((m->heads + 2 * m->kv_heads) * m->head_dim, TILE);
    s->attended_stride = m->heads * m->head_dim;
    s->act_stride = m->intermediate;
    s->row_stride = up(2 * m->hidden, LINE);
    s->scores_stride = up(TOGETHER * group * (up(longest, LANES) + LANES), LINE);
    s->team = carve(base, &used, sizeof *s->team);
    s->x = carve(base, &used, rows * s->x_stride * 4);
    s->qkv = carve(base, &used, rows * s->qkv_stride * 4);
    s->attended = carve(base, &used, rows * s->attended_stride * 4);
    s->bunch = carve(base, &used, (rows + 1) * (int64_t)sizeof *s->bunch);
    s->act = carve(base, &used, rows * s->act_stride * 4);
    lay_out_integers(rows, most(most((m->entry ? 2 : 1) * m->hidden, m->intermediate), s->attended_stride), base, &used, &s->q);
    s->row = carve(base, &used, threads * s->row_stride * 4);
    s->row_scores = up(longest, LANES) + LANES;
    s->scores = carve(base, &used, most(threads * s->scores_stride, longest < FAR ? 0 : split_rows(m, rows, threads) * m->heads * s->row_scores) * 4);
    return used;
}

int64_t native_space(const model *m, int64_t rows, int64_t longest, int64_t threads) {
    space s;
    return lay_out(m, rows, longest, threads, NULL, &s);
}

/* ---- stages of a pass, each shared by all threads ------------------------------------------------------------------ */

static void embed(const linear *w, int64_t token, float *x) {
    const int8_t *tile = (const int8_t *)w->tiles + token / TILE * TILE * w->inputs + token % TILE * 2;
    for (int64_t i = 0; i < w->inputs; i++) x[i] = (float)tile[i / 2 * TILE * 2 + i % 2] * w->scale[token];
}

/* What is multiplied with first, behind the entry. */
static const linear *opening(const model *m) { return m->layers ? &m->layer->qkv : &m->head; }

/* The rows to start from: through the entry. */
static void enter_joined(const kernels *k, const model *m, const pass *p, const space *s, int thread, int size) {
    team *t = s->team;
    const draft_entry *e = m->entry;
    float *row = s->row + thread * s->row_stride, *right = row + m->hidden;
    SHARED(r, p->rows) {
        embed(&e->embedding, p->tokens[r], row);
        memcpy(right, p->inputs + r * m->hidden, (size_t)m->hidden * sizeof *right);
        if (e->embed_norm) k->norm(row, e->embed_norm, m->hidden, m->epsilon, row);
        if (e->input_norm) k->norm(right, e->input_norm, m->hidden, m->epsilon, right);
        quantise_row(k, &e->weights, row, r, p->rows, &s->q);
    }
    meet(t, size);
    product(k, &e->weights, &s->q, p->rows, STORE, s->x, s->x_stride, t);
    want(opening(m), NULL);
}

/* The rows to start from: embeddings, or inputs as they are. */
static void enter(const model *m, const pass *p, const space *s) {
    team *t = s->team;
    SHARED(r, p->rows) {
        float *x = s->x + r * s->x_stride;
        memset(x, 0, (size_t)s->x_stride * sizeof *x);
        if (p->inputs) {
            memcpy(x, p->inputs + r * m->hidden, (size_t)m->hidden * sizeof *x);
            continue;
        }
        embed(&m->embedding, p->tokens[r], x);
    }
}

static void norm_and_quantise(const kernels *k, const model *m, const float *weight, const linear *w, int64_t rows, const space *s,
                              int thread) {
    team *t = s->team;
    float *row = s->row + thread * s->row_stride;
    SHARED(r, rows) {
        const float *x = s->x + r * s->x_stride;
        if (weight) k->norm(x, weight, m->hidden, m->epsilon, row);
        quantise_row(k, w, weight ? row : x, r, rows, &s->q);
    }
}

/* Residual rows that are wanted, as they are before layer `at`. Nobody writes x before the next meeting but one. */
static void tell(const model *m, const pass *p, int64_t at, const space *s, int thread, int size) {
    for (int64_t d = 0; d < p->depths_all; d++) {
        if (p->depths[d] != at) continue;
        for (int64_t r = thread; r < p->rows; r += size)
            memcpy(p->residuals + (d * p->rows + r) * m->hidden, s->x + r * s->x_stride, (size_t)m->hidden * sizeof *s->x);
    }
}

static void quantise_rows(const kernels *k, const linear *w, const float *x, int64_t stride, int64_t rows, const integers *q,
                          team *t) {
    SHARED(r, rows) quantise_row(k, w, x + r * stride, r, rows, q);
}

/* Rotate queries and keys, put keys and values into the cache. */
static void rotate_and_cache(const kernels *k, const model *m, const pass *p, int64_t at, const space *s) {
    team *t = s->team;
    const layer *l = m->layer + at;
    int64_t width = m->head_dim, half = width / 2;
    SHARED(r, p->rows) {
        ask(&wanted, BETWEEN);
        float *heads = s->qkv + r * s->qkv_stride;
        const float *cos = m->cos + p->positions[r] * half, *sin = m->sin + p->positions[r] * half;
        for (int64_t h = 0; h < m->heads + m->kv_heads; h++) {
            const float *weight = h < m->heads ? l->q_norm : l->k_norm;
            if (weight) k->norm(heads + h * width, weight, width, m->epsilon, heads + h * width);
            k->rotate(heads + h * width, cos, sin, half);
        }
        for (int64_t h = 0; h < m->kv_heads; h++) {
            int64_t place = ((at * m->kv_heads + h) * p->slots_all + p->own[r]) * width;
            memcpy(p->keys + place, heads + (m->heads + h) * width, (size_t)width * sizeof *heads);
            memcpy(p->values + place, heads + (m->heads + m->kv_heads + h) * width, (size_t)width * sizeof *heads);
        }
    }
}

/* What to ask for meanwhile: nothing where so many keys and values come by that it would be gone again before it is used. */
static ahead *beside(const model *m, const pass *p) {
    int64_t bytes = p->listed * m->kv_heads * m->head_dim * 2 * (int64_t)sizeof *p->keys;
    return bytes / crowd <= fetched() ? &wanted : NULL;
}

static bunch bunch_at(const model *m, const pass *p, const space *s, int64_t at, int64_t h) {
    int64_t width = m->head_dim, group = m->heads / m->kv_heads, r = s->bunch[at], end = s->bunch[at + 1], longest = 0;
    for (int64_t i = r; i < end; i++) longest = most(longest, p->seen[i]);
    return (bunch){s->qkv + r * s->qkv_stride + h * group * width, s->attended + r * s->attended_stride + h * group * width,
                   end - r, group, width, s->qkv_stride, s->attended_stride, p->slots + p->first[r], p->seen + r, p->own + r, longest,
                   beside(m, p)};
}

/* A bunch and a head at a time; or, where these are few, all of them in three steps, of which the threads share slots and columns. */
static void attention(const kernels *k, const model *m, const pass *p, int64_t at, const space *s, int thread, int size) {
    team *t = s->team;
    int64_t cache = at * m->kv_heads * p->slots_all * m->head_dim, of_head = p->slots_all * m->head_dim;
    int64_t items = s->bunches * m->kv_heads, strips = (p->longest + SLOTS - 1) / SLOTS, parts = m->head_dim / COLUMNS + !!(m->head_dim % COLUMNS);
    if (!s->split) {
        SHARED(item, items) { /* bunches of one head in a row: they often share keys */
            int64_t h = item / s->bunches;
            const float *keys = p->keys + cache + h * of_head, *values = p->values + cache + h * of_head;
            float *scores = s->scores + thread * s->scores_stride;
            bunch b = bunch_at(m, p, s, item % s->bunches, h);
            k->score(&b, keys, values, 0, b.longest, scores);
            k->weights_of(&b, scores);
            k->mix(&b, values, scores, 0, m->head_dim);
        }
        return;
    }
#define EACH(item) \
    int64_t h = (item) / s->bunches, which = (item) % s->bunches; \
    bunch b = bunch_at(m, p, s, which, h); \
    float *scores = s->scores + (s->bunch[which] * m->heads + h * b.rows * b.group) * s->row_scores
    SHARED(part, items * strips) {
        EACH(part / strips);
        int64_t from = part % strips * SLOTS;
        k->score(&b, p->keys + cache + h * of_head, p->values + cache + h * of_head, from, from + SLOTS, scores);
    }
    meet(t, size);
    SHARED(item, items) {
        EACH(item);
        k->weights_of(&b, scores);
    }
    meet(t, size);
    SHARED(part, items * parts) {
        EACH(part / parts);
        int64_t from = part % parts * COLUMNS, to = from + COLUMNS < m->head_dim ? from + COLUMNS : m->head_dim;
        k->mix(&b, p->values + cache + h * of_head, scores, from, to);
    }
#undef EACH
}

/* Ask for the keys and values that this thread's share of a layer's attention will see, as far as the product in between leaves them there. */
static void ask_cache(const model *m, const pass *p, int64_t at, const space *s) {
    int64_t ranges = crowd < RANGES ? crowd : RANGES, mine = self % ranges, items = s->bunches * m->kv_heads;
    int64_t cache = at * m->kv_heads * p->slots_all * m->head_dim, of_head = p->slots_all * m->head_dim;
    const char *from, *end;
    int64_t passing = own_tiles(&m->layer[at].qkv, INT64_MAX, &from, &end), room = 2 * fetched() - passing; /* of the second cache */
    int64_t left = (room < fetched() ? room : fetched()) / (2 * (int64_t)sizeof *p->keys * m->head_dim);
    for (int64_t item = items * mine / ranges, before = -1; item < items * (mine + 1) / ranges; item++) {
        int64_t h = item / s->bunches, r = s->bunch[item % s->bunches], list = p->first[r] * m->kv_heads + h, longest = p->seen[r] - 1;
        if (list == before) continue;
        before = list;
        for (int64_t i = 0; i < longest && left > 0; i++, left--) {
            int64_t place = cache + h * of_head + p->slots[p->first[r] + i] * m->head_dim;
            for (int64_t d = 0; d < m->head_dim; d += CACHE_LINE / 4)
                __builtin_prefetch(p->keys + place + d, 0, 2), __builtin_prefetch(p->values + place + d, 0, 2);
        }
    }
}

static void bunch_by(const pass *p, int64_t limit, space *s) {
    s->bunches = 0;
    for (int64_t r = 0; r < p->rows; r++)
        if (!r || p->first[r] != p->first[r - 1] || r - s->bunch[s->bunches - 1] >= limit) s->bunch[s->bunches++] = r;
    s->bunch[s->bunches] = p->rows;
}

/* Rows one after the other that share a list go together, as many as let the thread with the most work end first: what a thread takes is
 * counted as its bunches, each of which reads its list (about what attending one row of it takes) and attends its rows.
 * Where lists are long and half of the threads would find nothing to do, they split the bunches' work. */
static void bunch_rows(const model *m, const pass *p, space *s) {
    bunch_by(p, TOGETHER, s);
    s->split = p->longest >= FAR && 2 * s->bunches * m->kv_heads <= p->threads && p->rows <= split_rows(m, p->rows, p->threads);
    if (s->split) return;
    int64_t best = TOGETHER, least = INT64_MAX;
    for (int64_t limit = TOGETHER; limit >= 1; limit--) {
        bunch_by(p, limit, s);
        int64_t highest = 0;
        for (int64_t b = 0; b < s->bunches; b++) highest = most(highest, s->bunch[b + 1] - s->bunch[b]);
        int64_t work = (s->bunches * m->kv_heads + p->threads - 1) / p->threads * (1 + highest);
        if (work <= least) least = work, best = limit;
    }
    bunch_by(p, best, s);
}

typedef struct {
    const model *model;
    const pass *pass;
    space space;
} pass_task;

static void run(const void *task, team *t, int thread, int size) {
    const model *m = ((const pass_task *)task)->model;
    const pass *p = ((const pass_task *)task)->pass;
    const space *s = &((const pass_task *)task)->space;
    const kernels *k = TABLE[m->kernels];
    want(m->entry ? &m->entry->weights : opening(m), m->entry ? opening(m) : NULL);
    if (m->entry) enter_joined(k, m, p, s, thread, size);
    else enter(m, p, s);
    meet(t, size);
    for (int64_t at = 0; at < m->layers; at++) {
        const layer *l = m->layer + at;
        const linear *after = at + 1 < m->layers ? &l[1].qkv : &m->head;
        tell(m, p, at, s, thread, size);
        norm_and_quantise(k, m, l->attention_norm, &l->qkv, p->rows, s, thread);
        meet(t, size);
        if (!s->split) ask_cache(m, p, at, s);
        product(k, &l->qkv, &s->q, p->rows, STORE, s->qkv, s->qkv_stride, t);
        want(&l->o, &l->gate_up);
        meet(t, size);
        rotate_and_cache(k, m, p, at, s);
        meet(t, size);
        attention(k, m, p, at, s, thread, size);
        meet(t, size);
        quantise_rows(k, &l->o, s->attended, s->attended_stride, p->rows, &s->q, t);
        meet(t, size);
        product(k, &l->o, &s->q, p->rows, ADD, s->x, s->x_stride, t);
        want(&l->gate_up, &l->down);
        meet(t, size);
        norm_and_quantise(k, m, l->mlp_norm, &l->gate_up, p->rows, s, thread);
        meet(t, size);
        product(k, &l->gate_up, &s->q, p->rows, GATE, s->act, s->act_stride, t);
        want(&l->down, after);
        meet(t, size);
        quantise_rows(k, &l->down, s->act, s->act_stride, p->rows, &s->q, t);
        meet(t, size);
        product(k, &l->down, &s->q, p->rows, ADD, s->x, s->x_stride, t);
        want(after, at + 1 < m->layers ? &l[1].o : NULL);
        meet(t, size);
    }
    SHARED(r, p->rows) {
        const float *x = s->x + r * s->x_stride;
        float *out = p->hidden + r * m->hidden;
        if (m->norm) k->norm(x, m->norm, m->hidden, m->epsilon, out);
        else memcpy(out, x, (size_t)m->hidden * sizeof *out);
    }
}

static int inside(const int64_t *numbers, int64_t count, int64_t stop) {
    int ok = 1;
    for (int64_t i = 0; i < count; i++) ok &= numbers[i] >= 0 && numbers[i] < stop;
    return ok;
}

static int lists_inside(const pass *p) {
    int ok = 1;
    for (int64_t r = 0; r < p->rows; r++)
        ok &= p->seen[r] >= 1 && p->seen[r] <= p->longest && p->first[r] >= 0 && p->first[r] <= p->listed - p->seen[r];
    return ok;
}

static int slots_inside(const int32_t *slots, int64_t count, int64_t stop) {
    int ok = 1;
    for (int64_t i = 0; i < count; i++) ok &= slots[i] >= 0 && slots[i] < stop;
    return ok;
}

static int pass_out_of_bounds(const model *m, const pass *p) {
    return !inside(p->tokens, p->rows, (m->entry ? &m->entry->embedding : &m->embedding)->outputs) ? 1
           : !inside(p->positions, p->rows, p->context)                                            ? 2
           : !inside(p->own, p->rows, p->slots_all)                                                ? 3
           : !slots_inside(p->slots, p->listed, p->slots_all)                                      ? 4
           : !lists_inside(p)                                                                      ? 5
                                                                                                   : 0;
}

int native_forward(const model *m, const pass *p) {
    int wrong = pass_out_of_bounds(m, p);
    if (wrong) return wrong;
    pass_task task = {m, p, {0}};
    lay_out(m, p->rows, p->longest, p->threads, p->space, &task.space);
    bunch_rows(m, p, &task.space);
    together(p->threads, run, &task, task.space.team);
    return 0;
}

/* ---- guesses of a draft head --------------------------------------------------------------------------------------- */

typedef struct {
    pass_task first, next; /* next: one row, the last guess */
    guesses *guesses;
    float *logits, *feature;                   /* feature: its input, then its result */
    int64_t token, position, own, start, seen; /* of that row */
    float joint;                               /* log-probability of the guesses so far */
    int more;
} guess_state;

int64_t native_guess_space(const model *m, const line *l, int64_t most) {
    return native_space(m, l->rows, l->end + most - 1, l->threads) + up(up(m->head.outputs, TILE) * 4, LINE) +
           up(m->hidden * 4, LINE) + up(l->rows * 4 * 8, LINE);
}

/* What the logits say, and the row that is next. */
static void note(const kernels *k, const model *m, guess_state *s) {
    guesses *g = s->guesses;
    int64_t at = g->made++;
    choice to = {0, 0, 0, g->ids + at * g->count, g->values + at * g->count};
    k->best(s->logits, m->head.outputs, NULL, g->count, &to);
    g->norms[at] = to.norm;
    s->joint += to.found ? to.values[0] - to.norm : NAN;
    s->more = g->made < g->most && s->joint >= g->least; /* never with a NaN */
    if (!s->more) return;
    if (!at) memcpy(s->feature, s->first.pass->hidden + (s->first.pass->rows - 1) * m->hidden, (size_t)m->hidden * sizeof(float));
    s->token = g->tokens[to.ids[0]];
    s->position++;
    s->seen++;
    s->own = s->first.pass->slots[s->start + s->seen - 1];
    bunch_rows(m, s->next.pass, &s->next.space);
}

static void run_guess(const void *task, team *t, int thread, int size) {
    guess_state *s = *(guess_state *const *)task;
    const model *m = s->first.model;
    const kernels *k = TABLE[m->kernels];
    const pass *p = s->first.pass;
    const integers *q = &s->next.space.q;
    const float *row = p->hidden + (p->rows - 1) * m->hidden;
    run(&s->first, t, thread, size);
    for (;;) {
        meet(t, size);
        if (!thread) {
            quantise_row(k, &m->head, row, 0, 1, q);
            q->scales[0] *= s->guesses->by;
        }
        meet(t, size);
        product(k, &m->head, q, 1, STORE, s->logits, 0, t);
        if (s->guesses->made + 1 < s->guesses->most) want(&m->entry->weights, opening(m));
        meet(t, size);
        if (!thread) note(k, m, s);
        meet(t, size);
        if (!s->more) return;
        run(&s->next, t, thread, size);
        row = s->next.pass->hidden;
    }
}

static int out_of_bounds(const model *m, const line *l, int64_t most) {
    for (int64_t r = 0; r < l->rows; r++)
        if (l->tokens[r] < 0 || l->tokens[r] >= m->entry->embedding.outputs) return 1;
    for (int64_t i = 0; i < l->end + most - 1; i++)
        if (l->slots[i] < 0 || l->slots[i] >= l->slots_all) return 2;
    return l->place < 0 || l->end < l->rows || l->place + l->rows + most - 1 > l->context ? 3 : 0;
}

int native_guess(const model *m, const line *l, guesses *g) {
    int64_t rows = l->rows, longest = l->end + g->most - 1, used = native_space(m, rows, longest, l->threads);
    int wrong = out_of_bounds(m, l, g->most);
    if (wrong) return wrong;
    guess_state state = {{m, NULL, {0}}, {m, NULL, {0}}, g, NULL, NULL, 0, l->place + rows - 1, 0, 0, l->end, 0.0f, 0};
    guess_state *s = &state;
    s->logits = carve(l->space, &used, up(m->head.outputs, TILE) * 4);
    s->feature = carve(l->space, &used, m->hidden * 4);
    int64_t *numbers = carve(l->space, &used, rows * 4 * 8);
    for (int64_t r = 0; r < rows; r++) {
        numbers[r] = l->place + r;                          /* position */
        numbers[rows + r] = l->slots[l->end - rows + r];    /* own */
        numbers[2 * rows + r] = 0;                          /* first */
        numbers[3 * rows + r] = l->end - rows + r + 1;      /* seen */
    }
    pass first = {rows, l->threads, l->slots_all, longest, l->tokens, numbers, numbers + rows, numbers + 2 * rows, numbers + 3 * rows,
                  l->slots, l->keys, l->values, l->hidden, l->space, l->inputs, NULL, 0, NULL, l->context, longest};
    pass next = {1, l->threads, l->slots_all, longest, &s->token, &s->position, &s->own, &s->start, &s->seen,
                 l->slots, l->keys, l->values, s->feature, l->space, s->feature, NULL, 0, NULL, l->context, longest};
    s->first.pass = &first, s->next.pass = &next;
    lay_out(m, rows, longest, l->threads, l->space, &s->first.space);
    lay_out(m, 1, longest, l->threads, l->space, &s->next.space); /* in the same place: one pass at a time */
    g->made = 0;
    bunch_rows(m, &first, &s->first.space);
    together(l->threads, run_guess, &s, s->first.space.team);
    return 0;
}

/* ---- what is read of logits ---------------------------------------------------------------------------------------- */

typedef struct {
    const kernels *kernels;
    const float *const *x;
    int64_t rows, n, count;
    const uint32_t *mask;
    float *norms, *values;
    int64_t *found;
    int32_t *ids;
} best_task;

static void run_best(const void *task, team *t, int thread, int size) {
    const best_task *b = task;
    (void)thread, (void)size;
    SHARED(r, b->rows) {
        choice to = {0, 0, 0, b->ids + r * b->count, b->values + r * b->count};
        b->kernels->best(b->x[r], b->n, b->mask ? b->mask + r * ((b->n + 31) / 32) : NULL, b->count, &to);
        b->norms[2 * r] = to.norm, b->norms[2 * r + 1] = to.legal, b->found[r] = to.found;
    }
}

void native_best(int index, const float *const *x, int64_t rows, int64_t n, const uint32_t *mask, int64_t count, int64_t threads,
                 float *norms, int64_t *found, int32_t *ids, float *values) {
    best_task task = {TABLE[index], x, rows, n, count, mask, norms, values, found, ids};
    team t;
    together(threads, run_best, &task, &t);
}

/* ---- one product, and parts for the tests -------------------------------------------------------------------------- */

int64_t native_linear_space(const linear *w, int64_t rows) {
    integers q;
    int64_t used = up(sizeof(team), LINE);
    lay_out_integers(rows, w->inputs, NULL, &used, &q);
    return used;
}

typedef struct {
    const kernels *kernels;
    const linear *w;
    const float *x;
    int64_t rows;
    float *out;
    integers q;
} linear_task;

static void run_linear(const void *task, team *t, int thread, int size) {
    const linear_task *l = task;
    (void)thread;
    quantise_rows(l->kernels, l->w, l->x, l->w->inputs, l->rows, &l->q, t);
    meet(t, size);
    product(l->kernels, l->w, &l->q, l->rows, STORE, l->out, up(l->w->outputs, TILE), t);
    wanted = (ahead){0};
}

void native_linear(const linear *w, int index, const float *x, int64_t rows, int64_t threads, float *out, void *memory) {
    int64_t used = 0;
    team *t = carve(memory, &used, sizeof *t);
    linear_task task = {TABLE[index], w, x, rows, out, {0}};
    lay_out_integers(rows, w->inputs, memory, &used, &task.q);
    together(threads, run_linear, &task, t);
}

typedef struct {
    linear_task product;
    best_task best;
} likeliest_task;

/* Logits, and what is read of them where they lie. */
static void run_likeliest(const void *task, team *t, int thread, int size) {
    const likeliest_task *l = task;
    run_linear(&l->product, t, thread, size);
    meet(t, size);
    const best_task *b = &l->best;
    SHARED(r, b->rows) {
        choice to = {0, 0, 0, b->ids + r * b->count, b->values + r * b->count};
        b->kernels->best(l->product.out + r * up(l->product.w->outputs, TILE), b->n, NULL, b->count, &to);
        b->norms[r] = to.norm;
    }
}

int64_t native_likeliest_space(const linear *w, int64_t rows) {
    return up(native_linear_space(w, rows), LINE) + rows * up(w->outputs, TILE) * 4;
}

void native_likeliest(const linear *w, int index, const float *x, int64_t rows, int64_t count, int64_t threads, float *norms,
                      int32_t *ids, float *values, void *memory) {
    int64_t used = 0;
    team *t = carve(memory, &used, sizeof *t);
    float *logits = (float *)((char *)memory + up(native_linear_space(w, rows), LINE));
    likeliest_task task = {{TABLE[index], w, x, rows, logits, {0}},
                           {TABLE[index], NULL, rows, w->outputs, count, NULL, norms, values, NULL, ids}};
    lay_out_integers(rows, w->inputs, memory, &used, &task.product.q);
    together(threads, run_likeliest, &task, t);
}

typedef struct {
    const float *weight;
    int64_t outputs, inputs;
    int8_t *tiles;
    float *scale;
} pack_task;

static void run_pack(const void *task, team *t, int thread, int size) {
    const pack_task *p = task;
    (void)thread, (void)size;
    SHARED(n, p->outputs) {
        const float *row = p->weight + n * p->inputs;
        int8_t *place = p->tiles + n / TILE * TILE * p->inputs + n % TILE * 2;
        float largest = 0.0f;
        for (int64_t k = 0; k < p->inputs; k++) largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
        p->scale[n] = largest / 127.0f;
        for (int64_t k = 0; k < p->inputs; k++)
            place[k / 2 * TILE * 2 + k % 2] = p->scale[n] > 0.0f ? (int8_t)nearbyintf(row[k] / p->scale[n]) : 0;
    }
}

void native_pack(const float *weight, int64_t outputs, int64_t inputs, int64_t threads, int8_t *tiles, float *scale) {
    pack_task task = {weight, outputs, inputs, tiles, scale};
    team t;
    together(threads, run_pack, &task, &t);
}

void native_trim(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

void native_norm(int index, const float *x, const float *weight, int64_t n, float epsilon, float *y) {
    TABLE[index]->norm(x, weight, n, epsilon, y);
}

float native_quantise(int index, const float *x, int64_t n, int16_t *X) {
    const kernels *k = TABLE[index]->few ? TABLE[index]->few : TABLE[index];
    return k->quantise(x, n, 1, 0, X, NULL);
}

void native_attend(int index, const float *q, int64_t group, int64_t width, const float *keys, const float *values,
                   const int32_t *slots, int64_t seen, float *scores, float *out) {
    int64_t own = slots[seen - 1];
    bunch b = {q, out, 1, group, width, 0, 0, slots, &seen, &own, seen, NULL};
    const kernels *k = TABLE[index];
    k->score(&b, keys, values, 0, seen, scores);
    k->weights_of(&b, scores);
    k->mix(&b, values, scores, 0, width);
}
