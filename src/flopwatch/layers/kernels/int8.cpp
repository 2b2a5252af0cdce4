// Int8 arithmetic on CPUs: what Python calls, through ctypes, with addresses of contiguous tensors.
//
// Plain C++ without torch's headers, so that it compiles in seconds wherever a compiler is. Each
// function exists for float32 ("f"), bfloat16 ("b") and float16 ("h").

#include "int8_matmul.h"
#include "int8_quantize.h"

extern "C" {

i64 count_scratch(i64 n, i64 k, int threads) {
    i64 pairs = (k + 1) / 2;
    return ((n + WIDTH - 1) / WIDTH * WIDTH + threads * BLOCK) * pairs * 2;
}

#define FOR_EACH_TYPE(DEFINE) DEFINE(f, float) DEFINE(b, bfloat16) DEFINE(h, float16)

#define DEFINE_QUANTIZE(NAME, LETTER, T)                                                        \
    void NAME##_##LETTER(                                                                       \
        const T* x, int8_t* q, float* scales, i64 rows, i64 columns, int threads) {             \
        NAME(x, q, scales, rows, columns, threads);                                             \
    }

#define DEFINE_ALL(LETTER, T)                                                                   \
    DEFINE_QUANTIZE(quantize_rowwise, LETTER, T)                                                \
    DEFINE_QUANTIZE(quantize_columnwise_transpose, LETTER, T)                                   \
    DEFINE_QUANTIZE(quantize_global, LETTER, T)                                                 \
    DEFINE_QUANTIZE(quantize_global_transpose, LETTER, T)                                       \
    void dequantize_rowwise_##LETTER(                                                           \
        const int8_t* q, const float* scales, T* x, i64 rows, i64 columns, int threads) {       \
        dequantize_rowwise(q, scales, x, rows, columns, threads);                               \
    }                                                                                           \
    void scale_sums_##LETTER(                                                                   \
        const int32_t* sums, const float* a, const float* b, i64 b_stride, const float* bias,   \
        T* out, i64 m, i64 n, int threads) {                                                    \
        scale_sums(sums, Scales{a, b, b_stride, bias}, out, m, n, threads);                     \
    }                                                                                           \
    void multiply_##LETTER(                                                                     \
        const int8_t* a, const int8_t* b, i64 b_has_rows, const float* a_scales,                \
        const float* b_scales, i64 b_stride, const float* bias, T* out, i64 m, i64 n, i64 k,    \
        int16_t* scratch, int threads) {                                                        \
        Scales scales{a_scales, b_scales, b_stride, bias};                                      \
        multiply(a, b, b_has_rows, scales, out, m, n, k, scratch, threads);                     \
    }

FOR_EACH_TYPE(DEFINE_ALL)

}  // extern "C"
