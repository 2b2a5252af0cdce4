// Numbers, their whole numbers and their scales, as `int8_plain.py` defines them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

using i64 = int64_t;

namespace {

constexpr float LARGEST = 127.0f;
constexpr float SMALLEST = 0x1p-120f;
constexpr uint32_t INFINITE = 0x7f800000;  // as bits, larger than any finite number and not a NaN

struct bfloat16 { uint16_t bits; };
#ifdef __F16C__
struct float16 { uint16_t bits; };  // older compilers for x86 have no type for it
inline float widen(float16 x) { return _cvtsh_ss(x.bits); }
inline void narrow(float x, float16& to) { to.bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
using float16 = _Float16;
inline float widen(float16 x) { return static_cast<float>(x); }
inline void narrow(float x, float16& to) { to = static_cast<float16>(x); }
#endif

inline float widen(float x) { return x; }
inline float widen(bfloat16 x) {
    uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, bfloat16& to) {
    uint32_t bits = bits_of(x);
    // To the nearest, halves to even; the sum would turn some NaNs into infinities.
    to.bits = x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
}

// Magnitudes are compared as whole numbers: in that order a NaN is the largest and is not lost.
inline uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffff; }

template <typename T>
uint32_t find_largest(const T* x, i64 size) {
    uint32_t largest = 0;
    for (i64 i = 0; i < size; i++) {
        uint32_t one = magnitude(widen(x[i]));
        largest = one > largest ? one : largest;
    }
    return largest;
}

struct Scale {
    float factor;  // from numbers to whole numbers
    float scale;   // and back
};

Scale make_scale(uint32_t largest_bits) {
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    if (largest_bits >= INFINITE) return {0.0f, NAN};
    if (largest < SMALLEST) return {0.0f, 0.0f};
    return {LARGEST / largest, largest / LARGEST};
}

template <typename T>
void round_all(const T* x, int8_t* q, i64 size, float factor) {
    if (factor == 0.0f) {  // 0 * infinity would not be 0
        std::memset(q, 0, size);
        return;
    }
    for (i64 i = 0; i < size; i++)
        q[i] = static_cast<int8_t>(static_cast<int32_t>(std::rint(widen(x[i]) * factor)));
}

template <typename T>
void quantize_rowwise(const T* x, int8_t* q, float* scales, i64 rows, i64 columns, int threads) {
#pragma omp parallel for num_threads(threads)
    for (i64 row = 0; row < rows; row++) {
        Scale made = make_scale(find_largest(x + row * columns, columns));
        round_all(x + row * columns, q + row * columns, columns, made.factor);
        scales[row] = made.scale;
    }
}

constexpr i64 PART = 1 << 14;

template <typename T>
uint32_t find_largest_of_all(const T* x, i64 size, int threads) {
    uint32_t largest = 0;
#pragma omp parallel for num_threads(threads) reduction(max : largest)
    for (i64 start = 0; start < size; start += PART) {
        uint32_t one = find_largest(x + start, size - start < PART ? size - start : PART);
        largest = one > largest ? one : largest;
    }
    return largest;
}

template <typename T>
void quantize_global(const T* x, int8_t* q, float* scale, i64 rows, i64 columns, int threads) {
    i64 size = rows * columns;
    Scale made = make_scale(find_largest_of_all(x, size, threads));
    *scale = made.scale;
#pragma omp parallel for num_threads(threads)
    for (i64 start = 0; start < size; start += PART)
        round_all(x + start, q + start, size - start < PART ? size - start : PART, made.factor);
}

constexpr i64 TILE = 64;  // a line of the cache for int8

void transpose_tile(const int8_t (&tile)[TILE][TILE], int8_t (&turned)[TILE][TILE]) {
#ifdef __SSE2__
    for (i64 row = 0; row < TILE; row += 16)
        for (i64 column = 0; column < TILE; column += 16) {
            __m128i now[16], next[16];
            for (i64 i = 0; i < 16; i++)
                now[i] = _mm_loadu_si128(
                    reinterpret_cast<const __m128i*>(&tile[row + i][column]));
            // Each round moves one bit of the row's number into the column's.
            for (int round = 0; round < 4; round++) {
                for (i64 i = 0; i < 8; i++) {
                    next[2 * i] = _mm_unpacklo_epi8(now[i], now[i + 8]);
                    next[2 * i + 1] = _mm_unpackhi_epi8(now[i], now[i + 8]);
                }
                std::memcpy(now, next, sizeof now);
            }
            for (i64 i = 0; i < 16; i++)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(&turned[column + i][row]), now[i]);
        }
#else
    for (i64 i = 0; i < TILE; i++)
        for (i64 j = 0; j < TILE; j++) turned[j][i] = tile[i][j];
#endif
}

// A strip of columns, transposed tile by tile, with a factor for each column.
template <typename T>
void round_transposed(const T* x, int8_t* q, i64 rows, i64 columns, i64 first, const float* factors) {
    i64 width = columns - first < TILE ? columns - first : TILE;
    int8_t tile[TILE][TILE] = {}, turned[TILE][TILE];
    for (i64 row = 0; row < rows; row += TILE) {
        i64 height = rows - row < TILE ? rows - row : TILE;
        for (i64 i = 0; i < height; i++) {
            const T* from = x + (row + i) * columns + first;
            for (i64 j = 0; j < width; j++) {
                float product = widen(from[j]) * factors[j];
                product = factors[j] == 0.0f ? 0.0f : product;  // 0 * infinity
                tile[i][j] = static_cast<int8_t>(static_cast<int32_t>(std::rint(product)));
            }
        }
        transpose_tile(tile, turned);
        for (i64 j = 0; j < width; j++)
            std::memcpy(q + (first + j) * rows + row, turned[j], height);
    }
}

template <typename T>
void quantize_columnwise_transpose(
    const T* x, int8_t* q, float* scales, i64 rows, i64 columns, int threads) {
#pragma omp parallel for num_threads(threads)
    for (i64 first = 0; first < columns; first += TILE) {
        i64 width = columns - first < TILE ? columns - first : TILE;
        uint32_t largest[TILE] = {};
        for (i64 row = 0; row < rows; row++)
            for (i64 j = 0; j < width; j++) {
                uint32_t one = magnitude(widen(x[row * columns + first + j]));
                largest[j] = one > largest[j] ? one : largest[j];
            }
        float factors[TILE];
        for (i64 j = 0; j < width; j++) {
            Scale made = make_scale(largest[j]);
            factors[j] = made.factor;
            scales[first + j] = made.scale;
        }
        round_transposed(x, q, rows, columns, first, factors);
    }
}

template <typename T>
void quantize_global_transpose(
    const T* x, int8_t* q, float* scale, i64 rows, i64 columns, int threads) {
    Scale made = make_scale(find_largest_of_all(x, rows * columns, threads));
    *scale = made.scale;
    float factors[TILE];
    for (float& factor : factors) factor = made.factor;
#pragma omp parallel for num_threads(threads)
    for (i64 first = 0; first < columns; first += TILE)
        round_transposed(x, q, rows, columns, first, factors);
}

template <typename T>
void dequantize_rowwise(
    const int8_t* q, const float* scales, T* x, i64 rows, i64 columns, int threads) {
#pragma omp parallel for num_threads(threads)
    for (i64 row = 0; row < rows; row++)
        for (i64 i = row * columns; i < (row + 1) * columns; i++) narrow(q[i] * scales[row], x[i]);
}

}  // namespace
