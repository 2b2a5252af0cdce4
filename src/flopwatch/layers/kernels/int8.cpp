// Int8 arithmetic on CPUs, as `int8_plain.py` defines it: quantise, dequantise, multiply.
//
// Plain C++ without torch's headers, so that it compiles in a second wherever a compiler is. Python
// calls it through ctypes with addresses of contiguous tensors. Each function exists for float32
// ("f"), bfloat16 ("b") and float16 ("h").

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

using i64 = int64_t;

namespace {

constexpr float LARGEST = 127.0f;
constexpr float SMALLEST = 0x1p-120f;
constexpr uint32_t INFINITE = 0x7f800000;  // as bits, larger than any finite number and not a NaN

struct bfloat16 { uint16_t bits; };
using float16 = _Float16;

inline float widen(float x) { return x; }
inline float widen(float16 x) { return static_cast<float>(x); }
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
inline void narrow(float x, float16& to) { to = static_cast<float16>(x); }
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

// The product, for CPUs without instructions for sums of int8 products (VNNI). Numbers are widened
// to int16, two neighbours along k side by side, so that one instruction multiplies 16 pairs and
// adds each two: exact, and twice as many products at once as in float32.
//
// A tile of HEIGHT x WIDTH sums stays in registers for the whole of k: 12 of the 16 that there are.
constexpr i64 HEIGHT = 6;
constexpr i64 WIDTH = 16;
constexpr i64 BLOCK = 192;  // rows of a that are packed together, and reused for every column of b

// HEIGHT rows of a, (k / 2, HEIGHT, 2); rows and numbers beyond the end are 0.
void pack_rows(const int8_t* a, i64 rows, i64 k, int16_t* packed) {
    i64 pairs = (k + 1) / 2;
    for (i64 i = 0; i < HEIGHT; i++) {
        const int8_t* row = a + i * k;
        int16_t* to = packed + 2 * i;
        for (i64 p = 0; p < pairs; p++) {
            bool inside = i < rows;
            to[p * 2 * HEIGHT] = inside ? row[2 * p] : 0;
            to[p * 2 * HEIGHT + 1] = inside && 2 * p + 1 < k ? row[2 * p + 1] : 0;
        }
    }
}

// WIDTH columns of b, (k / 2, WIDTH, 2), from b with its columns contiguous ...
void pack_columns(const int8_t* b, i64 columns, i64 k, int16_t* packed) {
    i64 pairs = (k + 1) / 2;
    for (i64 j = 0; j < WIDTH; j++) {
        const int8_t* column = b + j * k;
        int16_t* to = packed + 2 * j;
        for (i64 p = 0; p < pairs; p++) {
            bool inside = j < columns;
            to[p * 2 * WIDTH] = inside ? column[2 * p] : 0;
            to[p * 2 * WIDTH + 1] = inside && 2 * p + 1 < k ? column[2 * p + 1] : 0;
        }
    }
}

// ... or with its rows contiguous, n numbers each.
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
        : [pair] "m"(*reinterpret_cast<const int32_t*>(pair)), [left] "x"(left), [right] "x"(right));
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
                pack_columns(b + s * WIDTH * k, n - s * WIDTH, k, packed);
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
                    pack_rows(a + (first_row + i) * k, rows - i, k, packed + i * pairs * 2);
            packed_block = first_row;
            multiply_block(
                packed, scratch, scales, out, first_row, rows, first_column, columns, n, pairs);
        }
    }
}

}  // namespace

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
