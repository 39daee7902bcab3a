/* The NEON kernel set: a line is loaded as 32 outputs at even and 32 at odd inputs, widened, multiplied by one activation. */
#include "native.h"
#if defined(__aarch64__)
#include <arm_neon.h>

#include "rows.h"

INLINE void block(const int8_t *tile, int64_t pairs, const int16_t *x, int first, int rows, int32_t *sums) {
    int32x4_t sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 4; c++) sum[r][c] = vdupq_n_s32(0);
    for (int64_t k = 0; k < pairs; k++) {
        int8x16x2_t line = vld2q_s8(tile + k * 2 * TILE + 2 * first); /* .val[0]: 16 outputs, even input; .val[1]: odd */
        for (int odd = 0; odd < 2; odd++) {
            int16x8_t low = vmovl_s8(vget_low_s8(line.val[odd])), high = vmovl_high_s8(line.val[odd]);
            for (int r = 0; r < rows; r++) {
                int16_t one = x[2 * (k * rows + r) + odd];
                sum[r][0] = vmlal_n_s16(sum[r][0], vget_low_s16(low), one);
                sum[r][1] = vmlal_high_n_s16(sum[r][1], low, one);
                sum[r][2] = vmlal_n_s16(sum[r][2], vget_low_s16(high), one);
                sum[r][3] = vmlal_high_n_s16(sum[r][3], high, one);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 4; c++) vst1q_s32(sums + r * TILE + first + 4 * c, sum[r][c]);
}

static void products(const int8_t *tile, int64_t pairs, const int16_t *x, int rows, int32_t *sums) {
#define ROWS(count) \
    case count: \
        block(tile, pairs, x, 0, count, sums); \
        block(tile, pairs, x, 16, count, sums); \
        break;
    switch (rows) {
        ROWS(1)
        ROWS(2)
        ROWS(3)
        ROWS(4)
    }
#undef ROWS
}

static int usable(void) { return 1; }

const kernels kernels_neon = KERNELS("neon", 4, usable);
#endif
