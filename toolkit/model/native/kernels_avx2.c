/* The AVX2 kernel set: vpmaddwd on pairs of int16, 16 outputs (half a tile) x up to 4 rows in registers. */
#include "native.h"
#ifdef TOOLKIT_X86
#pragma GCC target("avx2")
#include <immintrin.h>

#include "rows.h"

/* `wide` registers of 8 outputs from `first` on, x `rows` rows; both are constants where this is expanded. */
INLINE void block(const int8_t *tile, int64_t pairs, const int16_t *x, int64_t stride, int first, int wide, int rows,
                  int32_t *sums) {
    __m256i sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < wide; c++) sum[r][c] = _mm256_setzero_si256();
    for (int64_t k = 0; k < pairs; k++) {
        const int8_t *line = tile + k * 2 * TILE + 2 * first;
        _mm_prefetch((const char *)line + AHEAD, _MM_HINT_T0);
        __m256i w[4];
        for (int c = 0; c < wide; c++) w[c] = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(line + 16 * c)));
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * stride + 2 * k, sizeof pair);
            __m256i both = _mm256_set1_epi32(pair);
            for (int c = 0; c < wide; c++) sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(w[c], both));
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < wide; c++) _mm256_storeu_si256((__m256i *)(sums + r * TILE + first + 8 * c), sum[r][c]);
}

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int64_t stride, int rows, int32_t *sums) {
#define HALVES(count) \
    case count: \
        block(tile, pairs, x, stride, 0, 2, count, sums); \
        block(tile, pairs, x, stride, 16, 2, count, sums); \
        break;
    switch (rows) {
    case 1:
        block(tile, pairs, x, stride, 0, 4, 1, sums);
        break;
    case 2:
        block(tile, pairs, x, stride, 0, 4, 2, sums);
        break;
        HALVES(3)
        HALVES(4)
    }
#undef HALVES
}

static int usable(void) { return __builtin_cpu_supports("avx2"); }

const kernels kernels_avx2 = KERNELS("avx2", 4, usable);
#endif
