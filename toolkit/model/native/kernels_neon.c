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

/* One span of 4 bits for 16 outputs: its integer sums, then its step and offset. */
INLINE void span4(const uint8_t *span, int first, const int16_t *x, const float *S, int rows, float *sums) {
    int32x4_t sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 4; c++) sum[r][c] = vdupq_n_s32(0);
    for (const uint8_t *line = span + SPAN_HEAD; line < span + SPAN_BYTES; line += 2 * TILE) {
        uint8x16x2_t both = vld2q_u8(line + 2 * first); /* .val[0]: inputs 0 and 2 of the four; .val[1]: 1 and 3 */
        for (int k = 0; k < 4; k++) {
            uint8x16_t w = k < 2 ? vandq_u8(both.val[k % 2], vdupq_n_u8(15)) : vshrq_n_u8(both.val[k % 2], 4);
            int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w))), high = vreinterpretq_s16_u16(vmovl_high_u8(w));
            for (int r = 0; r < rows; r++) {
                int16_t one = x[2 * (k / 2 * rows + r) + k % 2];
                sum[r][0] = vmlal_n_s16(sum[r][0], vget_low_s16(low), one);
                sum[r][1] = vmlal_high_n_s16(sum[r][1], low, one);
                sum[r][2] = vmlal_n_s16(sum[r][2], vget_low_s16(high), one);
                sum[r][3] = vmlal_high_n_s16(sum[r][3], high, one);
            }
        }
        x += 4 * rows;
    }
    for (int c = 0; c < 4; c++) {
        uint16_t halves[2][4];
        memcpy(halves[0], span + 2 * (first + 4 * c), sizeof halves[0]);
        memcpy(halves[1], span + 2 * (TILE + first + 4 * c), sizeof halves[1]);
        float32x4_t step = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves[0])));
        float32x4_t offset = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves[1])));
        for (int r = 0; r < rows; r++) {
            float32x4_t of_span = vaddq_f32(vmulq_f32(step, vcvtq_f32_s32(sum[r][c])), vmulq_f32(offset, vdupq_n_f32(S[r])));
            float *to = sums + r * TILE + first + 4 * c;
            vst1q_f32(to, vaddq_f32(vld1q_f32(to), of_span));
        }
    }
}

static void products4(const uint8_t *tile, int64_t spans, const int16_t *x, const float *S, int rows, float *sums) {
    memset(sums, 0, (size_t)rows * TILE * sizeof *sums);
#define ROWS(count) \
    case count: \
        for (int64_t s = 0; s < spans; s++) \
            for (int first = 0; first < TILE; first += 16) \
                span4(tile + s * SPAN_BYTES, first, x + s * SPAN * count, S + s * count, count, sums); \
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

const kernels kernels_neon = KERNELS("neon", 4, usable, NULL, 0, products4, NULL, NULL);
#endif
