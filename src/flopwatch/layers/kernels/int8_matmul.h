// Matmuls of int8 matrices, and what their sums stand for.

#pragma once

#include "int8_quantize.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

// What sums of products stand for: b has a scale for each column, or one for all.
struct Scales {
    const float* a;
    const float* b;
    i64 b_stride;  // 0: one for all
    const float* bias;  // may be null
};

template <typename T>
inline void scale_row(
    const int32_t* sums, const Scales& scales, i64 row, i64 first, i64 width, T* out) {
    float a = scales.a[row];
    if (scales.b_stride) {
        for (i64 j = 0; j < width; j++) {
            float bias = scales.bias ? scales.bias[first + j] : 0.0f;
            narrow(static_cast<float>(sums[j]) * a * scales.b[first + j] + bias, out[j]);
        }
    } else {
        float b = scales.b[0];
        for (i64 j = 0; j < width; j++) {
            float bias = scales.bias ? scales.bias[first + j] : 0.0f;
            narrow(static_cast<float>(sums[j]) * a * b + bias, out[j]);
        }
    }
}

template <typename T>
void scale_sums(const int32_t* sums, const Scales& scales, T* out, i64 m, i64 n, int threads) {
#pragma omp parallel for num_threads(threads)
    for (i64 row = 0; row < m; row++)
        scale_row(sums + row * n, scales, row, 0, n, out + row * n);
}

// The matmul, for CPUs without instructions for sums of int8 products (VNNI). Numbers are widened
// to int16, two neighbours along k side by side, so that one instruction multiplies 16 pairs and
// adds each two: exact, and twice as many products at once as in float32.
//
// A tile of HEIGHT x WIDTH sums stays in registers for the whole of k: 12 of the 16 that there are.
constexpr i64 HEIGHT = 6;
constexpr i64 WIDTH = 16;
constexpr i64 BLOCK = 192;  // rows of a that are packed together, and reused for every column of b

// COUNT lines, each of k contiguous numbers, as (k / 2, COUNT, 2): rows of a, or columns of b. Lines
// and numbers beyond the end are 0.
template <i64 COUNT>
void pack_lines(const int8_t* lines, i64 there, i64 k, int16_t* packed) {
    i64 pairs = (k + 1) / 2;
    for (i64 i = 0; i < COUNT; i++) {
        const int8_t* line = lines + i * k;
        int16_t* to = packed + 2 * i;
        for (i64 p = 0; p < pairs; p++) {
            bool inside = i < there;
            to[p * 2 * COUNT] = inside ? line[2 * p] : 0;
            to[p * 2 * COUNT + 1] = inside && 2 * p + 1 < k ? line[2 * p + 1] : 0;
        }
    }
}

// WIDTH columns of b, from b with its rows contiguous, n numbers each.
void pack_columns_of_rows(const int8_t* b, i64 columns, i64 k, i64 n, int16_t* packed) {
    i64 pairs = (k + 1) / 2;
    if (columns > WIDTH) columns = WIDTH;
    for (i64 p = 0; p < pairs; p++) {
        const int8_t* upper = b + 2 * p * n;
        const int8_t* lower = upper + n;
        bool both = 2 * p + 1 < k;
        int16_t* to = packed + p * 2 * WIDTH;
        if (columns == WIDTH && both) {
            for (i64 j = 0; j < WIDTH; j++) to[2 * j] = upper[j], to[2 * j + 1] = lower[j];
        } else {
            for (i64 j = 0; j < WIDTH; j++) {
                to[2 * j] = j < columns ? upper[j] : 0;
                to[2 * j + 1] = j < columns && both ? lower[j] : 0;
            }
        }
    }
}

// One tile of sums, (HEIGHT, WIDTH).
#ifdef __AVX2__
// Two int16 read as one int32, which the language allows for this type only.
typedef int32_t Pair __attribute__((may_alias));

// One row of the tile. In assembly, since compilers want more than the four registers that are left,
// and the smaller tile that they could do with takes 7 % longer.
inline void add_row(const int16_t* pair, __m256i left, __m256i right, __m256i (&sums)[2]) {
    __m256i both, other;
    asm("vpbroadcastd %[pair], %[both]\n\t"
        "vpmaddwd %[left], %[both], %[other]\n\t"
        "vpmaddwd %[right], %[both], %[both]\n\t"
        "vpaddd %[other], %[sum0], %[sum0]\n\t"
        "vpaddd %[both], %[sum1], %[sum1]"
        : [sum0] "+x"(sums[0]), [sum1] "+x"(sums[1]), [both] "=&x"(both), [other] "=&x"(other)
        : [pair] "m"(*reinterpret_cast<const Pair*>(pair)), [left] "x"(left), [right] "x"(right));
}

inline void sum_tile(const int16_t* a, const int16_t* b, i64 pairs, int32_t* sums) {
    __m256i tile[HEIGHT][2] = {};
    for (i64 p = 0; p < pairs; p++, a += 2 * HEIGHT, b += 2 * WIDTH) {
        __m256i left = _mm256_load_si256(reinterpret_cast<const __m256i*>(b));
        __m256i right = _mm256_load_si256(reinterpret_cast<const __m256i*>(b + WIDTH));
#pragma GCC unroll 6
        for (i64 i = 0; i < HEIGHT; i++) add_row(a + 2 * i, left, right, tile[i]);
    }
    for (i64 i = 0; i < HEIGHT; i++)
        for (i64 half = 0; half < 2; half++)
            _mm256_store_si256(
                reinterpret_cast<__m256i*>(sums + i * WIDTH + 8 * half), tile[i][half]);
}
#else
inline void sum_tile(const int16_t* a, const int16_t* b, i64 pairs, int32_t* sums) {
    std::memset(sums, 0, HEIGHT * WIDTH * sizeof(int32_t));
    for (i64 p = 0; p < pairs; p++, a += 2 * HEIGHT, b += 2 * WIDTH)
        for (i64 i = 0; i < HEIGHT; i++)
            for (i64 j = 0; j < WIDTH; j++)
                sums[i * WIDTH + j] += a[2 * i] * b[2 * j] + a[2 * i + 1] * b[2 * j + 1];
}
#endif

template <typename T>
void multiply_block(
    const int16_t* packed_a, const int16_t* packed_b, const Scales& scales, T* out, i64 first_row,
    i64 rows, i64 first_column, i64 columns, i64 n, i64 pairs) {
    for (i64 j = 0; j < columns; j += WIDTH) {
        const int16_t* b = packed_b + (first_column + j) * pairs * 2;
        i64 width = columns - j < WIDTH ? columns - j : WIDTH;
        for (i64 i = 0; i < rows; i += HEIGHT) {
            alignas(32) int32_t sums[HEIGHT * WIDTH];
            sum_tile(packed_a + i * pairs * 2, b, pairs, sums);
            i64 height = rows - i < HEIGHT ? rows - i : HEIGHT;
            for (i64 r = 0; r < height; r++) {
                i64 row = first_row + i + r;
                T* to = out + row * n + first_column + j;
                if (width == WIDTH)  // known when compiling, and so fast
                    scale_row(sums + r * WIDTH, scales, row, first_column + j, WIDTH, to);
                else
                    scale_row(sums + r * WIDTH, scales, row, first_column + j, width, to);
            }
        }
    }
}

// `scratch` has room for b, as int16 with k and n rounded up to whole pairs and tiles, then for a
// block of a for each thread.
template <typename T>
void multiply(
    const int8_t* a, const int8_t* b, i64 b_has_rows, const Scales& scales, T* out, i64 m, i64 n,
    i64 k, int16_t* scratch, int threads) {
    i64 pairs = (k + 1) / 2;
    i64 strips = (n + WIDTH - 1) / WIDTH;
    int16_t* blocks = scratch + strips * WIDTH * pairs * 2;
    i64 row_blocks = (m + BLOCK - 1) / BLOCK;
    // Few rows: columns are divided too, so that no thread is without work.
    i64 parts = row_blocks >= 4 * threads ? 1 : (4 * threads + row_blocks - 1) / row_blocks;
    i64 part = ((strips + parts - 1) / parts) * WIDTH;
    i64 column_blocks = (n + part - 1) / part;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (i64 s = 0; s < strips; s++) {
            int16_t* packed = scratch + s * WIDTH * pairs * 2;
            if (b_has_rows)
                pack_columns_of_rows(b + s * WIDTH, n - s * WIDTH, k, n, packed);
            else
                pack_lines<WIDTH>(b + s * WIDTH * k, n - s * WIDTH, k, packed);
        }
        int thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        int16_t* packed = blocks + thread * BLOCK * pairs * 2;
        i64 packed_block = -1;
#pragma omp for schedule(dynamic)
        for (i64 task = 0; task < row_blocks * column_blocks; task++) {
            i64 first_row = task / column_blocks * BLOCK, first_column = task % column_blocks * part;
            i64 rows = m - first_row < BLOCK ? m - first_row : BLOCK;
            i64 columns = n - first_column < part ? n - first_column : part;
            if (packed_block != first_row)
                for (i64 i = 0; i < rows; i += HEIGHT)
                    pack_lines<HEIGHT>(a + (first_row + i) * k, rows - i, k, packed + i * pairs * 2);
            packed_block = first_row;
            multiply_block(
                packed, scratch, scales, out, first_row, rows, first_column, columns, n, pairs);
        }
    }
}

}  // namespace
