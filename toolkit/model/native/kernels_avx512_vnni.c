/* The AVX-512 VNNI kernel set: multiply-add of pairs into the sum in one instruction (the one that does not saturate). */
#include "native.h"
#ifdef TOOLKIT_X86
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#define DOT(sum, w, x) _mm512_dpwssd_epi32(sum, w, x)
#include "avx512.h"

static int usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

const kernels kernels_avx512_vnni = KERNELS("avx512-vnni", 12, usable, NULL, 0, products4, NULL, NULL);
#endif
