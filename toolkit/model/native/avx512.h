/* The products of both AVX-512 kernel sets, which differ in DOT alone: a tile (two registers) x up to 12 rows. Halves of a tile
 * are c = 0 and 1. */
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
#define EVERY_COUNT \
    ROWS(1, 4) ROWS(2, 2) ROWS(3, 2) ROWS(4, 1) ROWS(5, 1) ROWS(6, 1) \
    ROWS(7, 1) ROWS(8, 1) ROWS(9, 1) ROWS(10, 1) ROWS(11, 1) ROWS(12, 1)
    switch (rows) { EVERY_COUNT }
#undef ROWS
}

/* One span of 4 bits: its integer sums, then its step and offset. */
INLINE void span4(const uint8_t *span, const int16_t *x, const float *S, int rows, int ways, float *sums) {
    const __m512i four = _mm512_set1_epi16(15);
    __m512i sum[MOST_ROWS][2][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < 2; c++) sum[r][c][0] = sum[r][c][1] = _mm512_setzero_si512();
    _mm_prefetch((const char *)span + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)span + 64 + AHEAD, _MM_HINT_T0);
    for (const uint8_t *line = span + SPAN_HEAD; line < span + SPAN_BYTES; line += 2 * TILE) {
        _mm_prefetch((const char *)line + AHEAD, _MM_HINT_T0);
        __m512i w[2][2];
        UNROLL for (int c = 0; c < 2; c++) {
            __m512i both = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)(line + TILE * c)));
            w[c][0] = _mm512_and_si512(both, four);
            w[c][1] = _mm512_srli_epi16(both, 4);
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int p = 0; p < 2; p++) {
                __m512i pair = _mm512_set1_epi32(pair_at(x + 2 * (p * rows + r)));
                int way = p % ways;
                UNROLL for (int c = 0; c < 2; c++) sum[r][c][way] = DOT(sum[r][c][way], w[c][p], pair);
            }
        x += 4 * rows;
    }
    UNROLL for (int c = 0; c < 2; c++) {
        __m512 step = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(span + TILE * c)));
        __m512 offset = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(span + TILE * (c + 2))));
        UNROLL for (int r = 0; r < rows; r++) {
            __m512i whole = ways == 2 ? _mm512_add_epi32(sum[r][c][0], sum[r][c][1]) : sum[r][c][0];
            __m512 of_span = _mm512_add_ps(_mm512_mul_ps(step, _mm512_cvtepi32_ps(whole)),
                                           _mm512_mul_ps(offset, _mm512_set1_ps(S[r])));
            float *place = sums + r * TILE + 16 * c;
            _mm512_storeu_ps(place, _mm512_add_ps(_mm512_loadu_ps(place), of_span));
        }
    }
}

static void products4(const uint8_t *tile, int64_t spans, const int16_t *x, const float *S, int rows, float *sums) {
    memset(sums, 0, (size_t)rows * TILE * sizeof *sums);
#define ROWS(count, ways) \
    case count: \
        for (int64_t s = 0; s < spans; s++) \
            span4(tile + s * SPAN_BYTES, x + s * SPAN * count, S + s * count, count, ways > 1 ? 2 : 1, sums); \
        break;
    switch (rows) { EVERY_COUNT }
#undef ROWS
}
