/* The threads of a pass, included by pass.c alone: OpenMP's pool, one region a pass, work items from counters, barriers. */
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Work items lie in ranges, one a thread, from which it takes them in order, so that what it asks memory for ahead is its own next
 * item; when its range is empty it takes from the next thread's. Threads meet at barriers; the last to arrive fills the ranges again. */
enum { LINE = CACHE_LINE, SPINS = 2000, RANGES = 16 }; /* bytes of a cache line; looks at a barrier before other processes are let run */

typedef struct {
    struct {
        _Alignas(LINE) atomic_long taken;
    } range[RANGES];
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_int meetings;
} team;

static __thread int self, crowd; /* this thread's number, and how many there are */
static __thread ahead wanted;    /* what this thread needs next, as far as the pass has said */

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
        for (int r = 0; r < size && r < RANGES; r++) atomic_store_explicit(&t->range[r].taken, 0, memory_order_relaxed);
        atomic_store_explicit(&t->meetings, meeting + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&t->meetings, memory_order_acquire) == meeting;) {
        if (wanted.at < wanted.end && spins < SPINS) ask(&wanted, 1);
        else relax(spins);
        spins += spins < SPINS;
    }
}

typedef void work(const void *task, team *t, int thread, int size);

/* Do the work with `threads` threads of OpenMP's pool, which torch uses too. */
static void together(int64_t threads, work *work, const void *task, team *t) {
    memset(t, 0, sizeof *t);
#pragma omp parallel num_threads((int)threads)
    {
        self = omp_get_thread_num(), crowd = omp_get_num_threads();
        work(task, t, self, crowd);
    }
}

/* The next of `count` items for this thread, `count` where none is left; tried: ranges that it found empty, 0 at first. */
static int64_t take(team *t, int64_t count, int64_t *tried) {
    int64_t ranges = crowd < RANGES ? crowd : RANGES;
    for (; *tried < ranges; ++*tried) {
        int64_t mine = (self + *tried) % ranges, from = count * mine / ranges, end = count * (mine + 1) / ranges;
        int64_t item = from + atomic_fetch_add_explicit(&t->range[mine].taken, 1, memory_order_relaxed);
        if (item < end) return item;
    }
    return count;
}

#define SHARED(item, count) \
    for (int64_t all_ = (count), tried_ = 0, item = take(t, all_, &tried_); item < all_; item = take(t, all_, &tried_))
