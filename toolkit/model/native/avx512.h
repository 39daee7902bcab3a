/* The products of both AVX-512 kernel sets, which differ in DOT alone: a tile (two registers) x up to 8 rows. */
#include <immintrin.h>

#include "rows.h"

/* `ways` partial sums hide the latency of DOT where there are few rows; rows and ways are constants where this is expanded. */
INLINE void block(const int8_t *tile, int64_t pairs, const int16_t *x, int64_t stride, int rows, int ways, int32_t *sums) {
    __m512i sum[8][4][2];
    for (int r = 0; r < rows; r++)
        for (int u = 0; u < ways; u++) sum[r][u][0] = sum[r][u][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < pairs; k += ways)
        for (int u = 0; u < ways; u++) {
            const int8_t *line = tile + (k + u) * 2 * TILE;
            _mm_prefetch((const char *)line + AHEAD, _MM_HINT_T0);
            __m512i low = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)line));
            __m512i high = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)(line + TILE)));
            for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, x + r * stride + 2 * (k + u), sizeof pair);
                __m512i both = _mm512_set1_epi32(pair);
                sum[r][u][0] = DOT(sum[r][u][0], low, both);
                sum[r][u][1] = DOT(sum[r][u][1], high, both);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2; c++) {
            for (int u = 1; u < ways; u++) sum[r][0][c] = _mm512_add_epi32(sum[r][0][c], sum[r][u][c]);
            _mm512_storeu_si512(sums + r * TILE + 16 * c, sum[r][0][c]);
        }
}

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int64_t stride, int rows, int32_t *sums) {
#define ROWS(count, ways) \
    case count: \
        block(tile, pairs, x, stride, count, ways, sums); \
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
    }
#undef ROWS
}
