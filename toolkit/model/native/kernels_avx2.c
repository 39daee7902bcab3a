/* The AVX2 kernel set: vpmaddwd on pairs of int16, 16 outputs (half a tile) x up to 6 rows in registers. */
#include "native.h"
#ifdef TOOLKIT_X86
#pragma GCC target("avx2")
#include <immintrin.h>

#include "rows.h"

/* `wide` registers of 8 outputs, x `rows` rows; both are constants where this is expanded. */
INLINE void block(const int8_t *tile, int64_t pairs, const int16_t *x, int wide, int rows, int32_t *sums) {
    __m256i sum[MOST_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < wide; c++) sum[r][c] = _mm256_setzero_si256();
    for (int64_t k = 0; k < pairs; k++) {
        _mm_prefetch((const char *)tile + AHEAD, _MM_HINT_T0);
        __m256i w[4];
        UNROLL for (int c = 0; c < wide; c++) w[c] = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(tile + 16 * c)));
        UNROLL for (int r = 0; r < rows; r++) {
            __m256i both = _mm256_set1_epi32(pair_at(x + 2 * r));
            UNROLL for (int c = 0; c < wide; c++) sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(w[c], both));
        }
        tile += 2 * TILE;
        x += 2 * rows;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < wide; c++) _mm256_storeu_si256((__m256i *)(sums + r * TILE + 8 * c), sum[r][c]);
}

/* One half of a tile; a function of its own, or the compiler mixes the halves and runs out of registers. */
#define HALF(count) \
    static __attribute__((noinline)) void half_##count(const int8_t *tile, int64_t pairs, const int16_t *x, int32_t *sums) { \
        block(tile, pairs, x, 2, count, sums); \
    }
HALF(3)
HALF(4)
HALF(5)
HALF(6)
#undef HALF

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int32_t *sums) {
#define HALVES(count) \
    case count: \
        half_##count(tile, pairs, x, sums); \
        half_##count(tile + TILE, pairs, x, sums + TILE / 2); \
        break;
    switch (rows) {
    case 1:
        block(tile, pairs, x, 4, 1, sums);
        break;
    case 2:
        block(tile, pairs, x, 4, 2, sums);
        break;
        HALVES(3)
        HALVES(4)
        HALVES(5)
        HALVES(6)
    }
#undef HALVES
}

static int usable(void) { return __builtin_cpu_supports("avx2"); }

const kernels kernels_avx2 = KERNELS("avx2", 6, usable);
#endif
