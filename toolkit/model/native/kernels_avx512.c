/* The AVX-512 kernel set without VNNI: a multiply-add of pairs and an addition. */
#include "native.h"
#ifdef TOOLKIT_X86
#pragma GCC target("avx512f,avx512bw,avx512vl")
#define DOT(sum, w, x) _mm512_add_epi32(sum, _mm512_madd_epi16(w, x))
#include "avx512.h"

static int usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

const kernels kernels_avx512 = KERNELS("avx512", 12, usable, NULL, 0, products4, NULL, NULL);
#endif
