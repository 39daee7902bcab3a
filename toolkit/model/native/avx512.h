/* The products of both AVX-512 kernel sets, which differ in DOT alone: a tile (two registers) x up to 12 rows. */
#include <immintrin.h>

#include "rows.h"

/* `ways` partial sums hide the latency of DOT where there are few rows; rows and ways are constants where this is expanded. */
INLINE void block(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int ways, int32_t *sums) {
    __m512i sum[MOST_ROWS][4][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int u = 0; u < ways; u++) sum[r][u][0] = sum[r][u][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < pairs; k += ways)
        UNROLL for (int u = 0; u < ways; u++) {
            _mm_prefetch((const char *)tile + AHEAD, _MM_HINT_T0);
            __m512i low = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)tile));
            __m512i high = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)(tile + TILE)));
            UNROLL for (int r = 0; r < rows; r++) {
                __m512i both = _mm512_set1_epi32(pair_at(x + 2 * r));
                sum[r][u][0] = DOT(sum[r][u][0], low, both);
                sum[r][u][1] = DOT(sum[r][u][1], high, both);
            }
            tile += 2 * TILE;
            x += 2 * rows;
        }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < 2; c++) {
            UNROLL for (int u = 1; u < ways; u++) sum[r][0][c] = _mm512_add_epi32(sum[r][0][c], sum[r][u][c]);
            _mm512_storeu_si512(sums + r * TILE + 16 * c, sum[r][0][c]);
        }
}

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int32_t *sums) {
#define ROWS(count, ways) \
    case count: \
        block(tile, pairs, x, count, ways, sums); \
        break;
    switch (rows) {
        ROWS(1, 4)
        ROWS(2, 2)
        ROWS(3, 2)
        ROWS(4, 1)
        ROWS(5, 1)
        ROWS(6, 1)
        ROWS(7, 1)
        ROWS(8, 1)
        ROWS(9, 1)
        ROWS(10, 1)
        ROWS(11, 1)
        ROWS(12, 1)
    }
#undef ROWS
}
