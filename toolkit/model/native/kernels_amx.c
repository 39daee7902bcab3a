/* The AMX kernel set: products on tiles of 8-bit numbers, up to 16 rows in hardly more time than it takes to read the weights.
 *
 * A number of at most 14 bits is 128 h + l with |h| <= 64 and 0 <= l < 128, so that a sum of products with 8-bit weights is 128 times
 * the sum over h plus the sum over l: two sums of 8-bit products, exact like every other set's. Rows of a group lie as
 *
 *     X   int8 [inputs / 64][h, l][rows][64]           zeros behind the last input
 *
 * and 64 inputs of a tile of weights become two matrices of the processor's [16][16 outputs][4 inputs], outputs 0-3, 8-11, 16-19,
 * 24-27 and the others: what an interleaving of two lines of pairs gives. The sums are put in order at the end.
 *
 *     up to 8 rows   tiles 0 1  sums over h and below them l, both matrices      4     h and below them l of the rows      6 7  matrices
 *     up to 16       tiles 0 1  sums over h, both matrices      2 3  over l      4 5   h, l of the rows                    6 7  matrices
 *
 * Tiles are as high as the largest group of a product; a smaller one reads a line too many, whose sums nobody looks at.
 * A few rows are left to the set with VNNI, which is as fast there; so are matrices of 4 bits.
 */
#define _DEFAULT_SOURCE /* for syscall */
#include "native.h"
#ifdef TOOLKIT_AMX
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8")
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HALF = 128, SIDE = 16, LINE64 = 64, MATRIX = SIDE * LINE64 };

typedef int8_t b8 __attribute__((vector_size(8)));
#define PUT(X, rows, row, i, q) put_halves((int8_t *)(X), rows, row, i, q)
#include "rows.h"

/* Eight whole numbers as halves: the upper ones, then the lower ones. */
static inline void put_halves(int8_t *X, int64_t rows, int64_t row, int64_t i, h8 q) {
    int8_t *place = X + i / PAD * 2 * rows * PAD + row * PAD + i % PAD;
    b8 high = __builtin_convertvector(q >> 7, b8), low = __builtin_convertvector(q & (HALF - 1), b8);
    memcpy(place, &high, sizeof high);
    memcpy(place + rows * PAD, &low, sizeof low);
}

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16]; /* of a line of each tile */
    uint8_t lines[16];
} __attribute__((packed)) shapes;

/* The compiler does not know what tile instructions read: whatever was written before is to be in memory. */
#define WRITTEN __asm__ volatile("" ::: "memory")

enum { BLOCKS = STRETCH / PAD };

/* How the tiles of this thread were set before: other libraries set theirs once for a thread and rely on that. */
static __thread shapes others __attribute__((aligned(64)));
static __thread int joint;            /* h and l of a row in one tile */
static __thread int keeps;            /* whether matrices are kept for the next group */
static __thread const int8_t *kept;   /* whose they are */
static __thread int8_t matrices[BLOCKS][2 * MATRIX] __attribute__((aligned(64)));

static void begin(int rows, int again) {
    __asm__ volatile("sttilecfg %0" : "=m"(others));
    shapes tiles __attribute__((aligned(64))) = {.palette = 1};
    joint = rows <= SIDE / 2, keeps = again, kept = NULL;
    for (int i = 0; i < 8; i++)
        tiles.bytes[i] = LINE64, tiles.lines[i] = (uint8_t)(i >= 6 ? SIDE : joint ? 2 * rows : rows);
    __asm__ volatile("ldtilecfg %0" ::"m"(tiles)); /* gcc's intrinsic is told of eight bytes of it */
}

/* Tiles in use make the system keep 8 KB more for this thread. */
static void end(void) {
    if (others.palette) __asm__ volatile("ldtilecfg %0" ::"m"(others));
    else _tile_release();
}

/* `pairs` <= 32 pairs of inputs of a tile of weights as the two matrices, zeros behind them. */
INLINE void interleave(const int8_t *tile, int64_t pairs, int8_t *to) {
    UNROLL for (int q = 0; q < SIDE; q++) {
        __m512i one = _mm512_setzero_si512(), two = one;
        if (2 * q < pairs) {
            _mm_prefetch((const char *)tile + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)tile + 2 * TILE + AHEAD, _MM_HINT_T0);
            one = _mm512_load_si512(tile), two = _mm512_load_si512(tile + 2 * TILE);
        }
        _mm512_store_si512(to + q * LINE64, _mm512_unpacklo_epi16(one, two));
        _mm512_store_si512(to + MATRIX + q * LINE64, _mm512_unpackhi_epi16(one, two));
        tile += 4 * TILE;
    }
}

static void prepare(const int8_t *tile, int64_t pairs, int64_t block, int8_t *to) {
    int64_t left = pairs - block * (PAD / 2);
    if (left >= PAD / 2) interleave(tile + block * PAD * TILE, PAD / 2, to);
    else interleave(tile + block * PAD * TILE, left, to);
}

/* The sums of one block more. */
INLINE void multiply(const int8_t *X, int rows, const int8_t *both, int one_tile) {
    _tile_loadd(4, X, PAD);
    _tile_loadd(6, both, LINE64);
    _tile_loadd(7, both + MATRIX, LINE64);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if (one_tile) return;
    _tile_loadd(5, X + rows * PAD, PAD);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
}

/* A block is prepared while the one before it is multiplied, in other lines, or all are there already. */
INLINE void blocks(const int8_t *tile, int64_t pairs, const int8_t *X, int rows, int one_tile) {
    enum { RING = 4 };
    int8_t ring[RING][2 * MATRIX] __attribute__((aligned(64)));
    int64_t count = (pairs + PAD / 2 - 1) / (PAD / 2);
    if (keeps) {
        if (tile != kept)
            for (int64_t b = 0; b < count; b++) prepare(tile, pairs, b, matrices[b]);
        kept = tile;
        WRITTEN;
        for (int64_t b = 0; b < count; b++) multiply(X + b * 2 * rows * PAD, rows, matrices[b], one_tile);
        return;
    }
    prepare(tile, pairs, 0, ring[0]);
    for (int64_t b = 0; b < count; b++) {
        if (b + 1 < count) prepare(tile, pairs, b + 1, ring[(b + 1) % RING]);
        WRITTEN;
        multiply(X + b * 2 * rows * PAD, rows, ring[b % RING], one_tile);
    }
}

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int32_t *sums) {
    int32_t found[4 * SIDE * SIDE] __attribute__((aligned(64)));
    const int32_t *low = found + (joint ? rows * SIDE : 2 * SIDE * SIDE); /* the sums over l that belong to those over h */
    _tile_zero(0);
    _tile_zero(1);
    if (joint) {
        blocks(tile, pairs, (const int8_t *)x, rows, 1);
    } else {
        _tile_zero(2);
        _tile_zero(3);
        blocks(tile, pairs, (const int8_t *)x, rows, 0);
        _tile_stored(2, found + 2 * SIDE * SIDE, LINE64);
        _tile_stored(3, found + 3 * SIDE * SIDE, LINE64);
    }
    _tile_stored(0, found, LINE64);
    _tile_stored(1, found + SIDE * SIDE, LINE64);
    const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i right = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int r = 0; r < rows; r++) {
        __m512i part[2];
        for (int c = 0; c < 2; c++)
            part[c] = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(found + (c * SIDE + r) * SIDE), 7),
                                       _mm512_loadu_si512(low + (c * SIDE + r) * SIDE));
        _mm512_storeu_si512(sums + r * TILE, _mm512_permutex2var_epi32(part[0], left, part[1]));
        _mm512_storeu_si512(sums + r * TILE + SIDE, _mm512_permutex2var_epi32(part[0], right, part[1]));
    }
}

/* The system hands out tiles on request only, once for all threads of a process, which then needs larger stacks for signals; it
 * refuses where a thread has a small one already. */
static int usable(void) {
    enum { ASK = 0x1023, TILES = 18 };
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, ASK, TILES) == 0;
}

const kernels kernels_amx = KERNELS("amx", SIDE, usable, &kernels_avx512_vnni, 3, NULL, begin, end);
#endif
