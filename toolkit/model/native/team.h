/* The threads of a pass, included by pass.c alone: OpenMP's pool, one region a pass, work items from a counter, barriers. */
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Threads take work items from `next` and meet at barriers; the last to arrive sets `next` back. */
enum { LINE = 64, SPINS = 2000 }; /* bytes of a cache line; looks at a barrier before other processes are let run */

typedef struct {
    _Alignas(LINE) atomic_long next;
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_int meetings;
} team;

static void relax(int spins) {
    if (spins >= SPINS) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

static void meet(team *t, int size) {
    int meeting = atomic_load_explicit(&t->meetings, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == size - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        atomic_store_explicit(&t->meetings, meeting + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&t->meetings, memory_order_acquire) == meeting; spins += spins < SPINS) relax(spins);
}

typedef void work(const void *task, team *t, int thread, int size);

/* Do the work with `threads` threads of OpenMP's pool, which torch uses too. */
static void together(int64_t threads, work *work, const void *task, team *t) {
    memset(t, 0, sizeof *t);
#pragma omp parallel num_threads((int)threads)
    work(task, t, omp_get_thread_num(), omp_get_num_threads());
}

static int64_t take(team *t) { return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed); }

#define SHARED(item, count) for (int64_t item = take(t); item < (count); item = take(t))
