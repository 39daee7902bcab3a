/* The portable kernel set: plain C, for processors without a set of their own, and the twin the others are tested against. */
#include "native.h"
#include "rows.h"

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int32_t *sums) {
    for (int r = 0; r < rows; r++) {
        int32_t sum[TILE] = {0};
        for (int64_t k = 0; k < pairs; k++)
            for (int n = 0; n < TILE; n++)
                sum[n] += tile[(k * TILE + n) * 2] * x[2 * (k * rows + r)] + tile[(k * TILE + n) * 2 + 1] * x[2 * (k * rows + r) + 1];
        memcpy(sums + r * TILE, sum, sizeof sum);
    }
}

/* The number that a half float stands for. */
static float half(const uint8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : (float)fraction * 0x1p-24f; /* no infinities come here */
    return bits >> 15 ? -value : value;
}

static void products4(const uint8_t *tile, int64_t spans, const int16_t *x, const float *S, int rows, float *sums) {
    for (int r = 0; r < rows; r++) {
        float all_spans[TILE] = {0};
        for (int64_t s = 0; s < spans; s++) {
            const uint8_t *span = tile + s * SPAN_BYTES;
            const int16_t *own = x + s * SPAN * rows + 2 * r; /* pair p: own[2 * p * rows] and the next */
            int32_t sum[TILE] = {0};
            for (int line = 0; line < SPAN / 4; line++)
                for (int n = 0; n < TILE; n++)
                    for (int odd = 0; odd < 2; odd++) {
                        int both = span[SPAN_HEAD + (line * TILE + n) * 2 + odd];
                        sum[n] += (both & 15) * own[4 * line * rows + odd] + (both >> 4) * own[(4 * line + 2) * rows + odd];
                    }
            for (int n = 0; n < TILE; n++)
                all_spans[n] += half(span + 2 * n) * (float)sum[n] + half(span + 2 * (TILE + n)) * S[s * rows + r];
        }
        memcpy(sums + r * TILE, all_spans, sizeof all_spans);
    }
}

static int usable(void) { return 1; }

const kernels kernels_portable = KERNELS("portable", 1, usable, NULL, 0, products4, NULL, NULL);
