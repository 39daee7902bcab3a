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

static int usable(void) { return 1; }

const kernels kernels_portable = KERNELS("portable", 1, usable);
