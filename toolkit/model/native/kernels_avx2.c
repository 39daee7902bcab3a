/* The AVX2 kernel set: vpmaddwd on pairs of int16, 16 outputs (half a tile) x up to 6 rows in registers; F16C for half floats. */
#include "native.h"
#ifdef TOOLKIT_X86
#pragma GCC target("avx2,f16c")
#include <cpuid.h>
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

/* One span of 4 bits for half a tile (two registers): its integer sums, then its step and offset. */
INLINE void span4(const uint8_t *span, int half, const int16_t *x, const float *S, int rows, float *sums) {
    const __m256i four = _mm256_set1_epi16(15);
    __m256i sum[MOST_ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (const uint8_t *line = span + SPAN_HEAD + TILE * half; line < span + SPAN_BYTES; line += 2 * TILE) {
        _mm_prefetch((const char *)line + AHEAD, _MM_HINT_T0);
        UNROLL for (int p = 0; p < 2; p++) {
            __m256i w[2];
            UNROLL for (int c = 0; c < 2; c++) {
                __m256i both = _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)(line + 16 * c)));
                w[c] = p ? _mm256_srli_epi16(both, 4) : _mm256_and_si256(both, four);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                __m256i pair = _mm256_set1_epi32(pair_at(x + 2 * (p * rows + r)));
                UNROLL for (int c = 0; c < 2; c++) sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(w[c], pair));
            }
        }
        x += 4 * rows;
    }
    UNROLL for (int c = 0; c < 2; c++) {
        const uint8_t *place = span + 2 * (16 * half + 8 * c);
        __m256 step = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)place));
        __m256 offset = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(place + 2 * TILE)));
        UNROLL for (int r = 0; r < rows; r++) {
            __m256 of_span = _mm256_add_ps(_mm256_mul_ps(step, _mm256_cvtepi32_ps(sum[r][c])),
                                           _mm256_mul_ps(offset, _mm256_set1_ps(S[r])));
            float *to = sums + r * TILE + 16 * half + 8 * c;
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), of_span));
        }
    }
}

static void products4(const uint8_t *tile, int64_t spans, const int16_t *x, const float *S, int rows, float *sums) {
    memset(sums, 0, (size_t)rows * TILE * sizeof *sums);
#define ROWS(count) \
    case count: \
        for (int64_t s = 0; s < spans; s++) \
            for (int half = 0; half < 2; half++) \
                span4(tile + s * SPAN_BYTES, half, x + s * SPAN * count, S + s * count, count, sums); \
        break;
    switch (rows) {
        ROWS(1)
        ROWS(2)
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
    }
#undef ROWS
}

static int usable(void) {
    unsigned a, b, c, d; /* gcc before 11 cannot be asked for f16c */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const kernels kernels_avx2 = KERNELS("avx2", 6, usable, NULL, 0, products4, NULL, NULL);
#endif
