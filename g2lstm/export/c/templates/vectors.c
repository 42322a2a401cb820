/* ---------------------------------------------------------------------------------------------- vectors of rows

   Matrices are stored in panels of ROWS rows, so that one instruction can work on several rows. A unit is what it works
   on: a vector of LANES rows, or a single row in plain C. Codes lie in 32-bit words: the word of a row holds four
   neighbouring columns in its four bytes, and codes of fewer bits share those bytes.

   Vectors that meet codes are rounded to 16 bits, and the sums of products are exact integers: they do not depend on the
   processor. */

#define ROWS 16
#define FULL 32639 /* the code of a vector's largest element: 127 * 256 + 127 */

/* Vectors for x86 from SSE2 to AVX-512 with VNNI, and for 64-bit Arm with its dot product; -DPLAIN_C turns them off. */
#if defined(PLAIN_C) || !defined(__GNUC__)
#elif defined(__AVX512BW__)
#include <immintrin.h>
#define AVX512 1
#define UNIT_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define AVX2 1
#define UNIT_BYTES 32
#elif defined(__SSE2__)
#include <immintrin.h>
#define SSE2 1
#define UNIT_BYTES 16
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define NEON 1
#define UNIT_BYTES 16
#endif

#ifdef UNIT_BYTES
typedef float floats __attribute__((vector_size(UNIT_BYTES)));
typedef uint32_t words __attribute__((vector_size(UNIT_BYTES)));
typedef int32_t ints __attribute__((vector_size(UNIT_BYTES)));
#define LANES (UNIT_BYTES / 4)
#define ALIGNED __attribute__((aligned(64)))
#define EACH_UNIT(u) _Pragma("GCC unroll 4") for (int u = 0; u < UNITS; ++u)
#define TO_FLOATS(whole) __builtin_convertvector((ints)(whole), floats)
#else
typedef float floats;
typedef uint32_t words;
typedef int32_t ints;
#define LANES 1
#define ALIGNED
#define EACH_UNIT(u) for (int u = 0; u < UNITS; ++u)
#define TO_FLOATS(whole) ((float)(ints)(whole))
#endif
#ifdef AVX512
#define TOGETHER 2 /* panels, as each number of a vector that is read can then serve two units */
#else
#define TOGETHER 1
#endif
#define BAND (TOGETHER * ROWS) /* rows that are computed together */
#define UNITS (BAND / LANES)
/* Where a unit's numbers lie, if those of the next panel lie `next` after the first one's. */
#define PLACE(u, next) ((u) % (UNITS / TOGETHER) * LANES + (u) / (UNITS / TOGETHER) * (next))

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* A vector as products read it: floats, and codes if a matrix of codes reads it. */
typedef struct {
    const float *values;
    const int16_t *codes;    /* four columns take four numbers, in the order that `dot` wants */
    const uint32_t *prefix;  /* the sum of the codes before every eighth column, modulo 2^32 */
    float step;              /* value = step * code */
} operand;

INLINE floats all(float value) { const floats zero = {0}; return zero + value; }
INLINE floats load(const float *from) { floats v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, floats v) { memcpy(to, &v, sizeof v); }
INLINE words bits_of(floats v) { words w; memcpy(&w, &v, sizeof w); return w; }
INLINE floats from_bits(words w) { floats v; memcpy(&v, &w, sizeof v); return v; }

/* a * b + c; and the smaller and the larger of two, which is b if one of them is NaN */
#if defined(AVX512)
INLINE floats add_product(floats a, floats b, floats c) { return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(AVX2)
INLINE floats add_product(floats a, floats b, floats c) { return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
#elif defined(SSE2)
INLINE floats add_product(floats a, floats b, floats c) { return a * b + c; }
INLINE floats smaller(floats a, floats b) { return (floats)_mm_min_ps((__m128)a, (__m128)b); }
INLINE floats larger(floats a, floats b) { return (floats)_mm_max_ps((__m128)a, (__m128)b); }
#elif defined(NEON)
INLINE floats add_product(floats a, floats b, floats c) { return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE floats smaller(floats a, floats b) { return (floats)vminq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE floats larger(floats a, floats b) { return (floats)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
#else
INLINE floats add_product(floats a, floats b, floats c) { return a * b + c; }
INLINE floats smaller(floats a, floats b) { return a < b ? a : b; }
INLINE floats larger(floats a, floats b) { return a > b ? a : b; }
#endif
//@ codes

#define SETS (UNITS > 2 ? 1 : 2) /* of sums, so that one need not wait for the other */

/* Codes are stored unsigned, half their range above their value; a sum starts at what that adds to it, negated. */
#ifdef NEON
#define SIGN 0x80808080 /* this product takes signed bytes, so codes of eight bits lose their offset here */
#define OFFSET(bits) ((bits) == 8 ? 0u : 1u << ((bits) - 1))
#else
#define SIGN 0
#define OFFSET(bits) (1u << ((bits) - 1))
#endif
#define ODD_OFFSET(bits) ((1u << (bits)) - 1) /* an odd code is twice what is stored, minus this */

typedef struct { words a, b; } sums;

INLINE words spread(uint32_t value) { const words zero = {0}; return zero + value; }
INLINE words load_words(const uint32_t *from) { words w; memcpy(&w, from, sizeof w); return w; }

/* Shifts each half of a word to the right by itself. */
#if defined(AVX512) && !defined(__AVX512VNNI__)
#define PAIRS 1
#define SHIFT(w, bits) (words)_mm512_srli_epi16((__m512i)(w), bits)
#define MULTIPLY(w, x) (words)_mm512_madd_epi16((__m512i)(w), (__m512i)(x))
#elif defined(AVX2)
#define PAIRS 1
#define SHIFT(w, bits) (words)_mm256_srli_epi16((__m256i)(w), bits)
#define MULTIPLY(w, x) (words)_mm256_madd_epi16((__m256i)(w), (__m256i)(x))
#elif defined(SSE2)
#define PAIRS 1
#define SHIFT(w, bits) (words)_mm_srli_epi16((__m128i)(w), bits)
#define MULTIPLY(w, x) (words)_mm_madd_epi16((__m128i)(w), (__m128i)(x))
#endif

/* Adds the products of four columns: w holds their codes, x those of the vector. */
INLINE void dot(int bits, sums *sum, words w, const int16_t *x)
{
#if defined(SSE2) /* one load for both; the others have instructions that spread what they load */
    const __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)x);
    const words first = (words)_mm_shuffle_epi32(both, 0x00), second = (words)_mm_shuffle_epi32(both, 0x55);
#elif defined(UNIT_BYTES)
    uint32_t two[2];
    memcpy(two, x, sizeof two);
    const words first = spread(two[0]), second = spread(two[1]);
#endif
#if defined(PAIRS)
    sum->a += MULTIPLY(w & ((1u << bits) - 1) * 0x00010001u, first);
    sum->b += MULTIPLY(SHIFT(w, 8), second);
#elif defined(AVX512)
    sum->a = (words)_mm512_dpbusd_epi32((__m512i)sum->a, (__m512i)w, (__m512i)first);
    sum->b = (words)_mm512_dpbusd_epi32((__m512i)sum->b, (__m512i)w, (__m512i)second);
#elif defined(NEON)
    sum->a = (words)vdotq_s32((int32x4_t)sum->a, (int8x16_t)w, (int8x16_t)first);
    sum->b = (words)vdotq_s32((int32x4_t)sum->b, (int8x16_t)w, (int8x16_t)second);
#else
    sum->a += (w & 255) * (uint32_t)x[0] + (w >> 8 & 255) * (uint32_t)x[1] + (w >> 16 & 255) * (uint32_t)x[2] +
              (w >> 24) * (uint32_t)x[3];
#endif
    (void)bits;
}

/* How `dot` wants the codes of eight columns, and what its two sums add up to. */
#if defined(UNIT_BYTES) && !defined(PAIRS)
INLINE words total(sums sum) { return (sum.a << 8) + sum.b; }
INLINE void arrange(int16_t *x) /* of four columns the high bytes, then the low ones; both are signed */
{
    uint8_t bytes[16];
    for (int k = 0; k < 8; ++k) {
        const uint32_t shifted = (uint32_t)x[k] + 128;
        bytes[k + k / 4 * 4] = (uint8_t)(shifted >> 8);
        bytes[k + k / 4 * 4 + 4] = (uint8_t)(shifted ^ 128);
    }
    memcpy(x, bytes, sizeof bytes);
}
#elif defined(PAIRS)
INLINE words total(sums sum) { return sum.a + sum.b; }
INLINE void arrange(int16_t *x) /* of four columns 0 and 2, then 1 and 3 */
{
    for (int k = 1; k < 8; k += 4) {
        const int16_t second = x[k];
        x[k] = x[k + 1];
        x[k + 1] = second;
    }
}
#else
INLINE words total(sums sum) { return sum.a + sum.b; }
INLINE void arrange(int16_t *x) { (void)x; }
#endif

/* Rounds a vector to codes, which get room for whole blocks of 32 columns. NaN or infinity makes the step NaN. */
static void quantise(operand *o, int32_t count, int16_t *codes, uint32_t *prefix)
{
    const uint32_t infinite = 0x7f800000;
    const int32_t filled = (count + 31) / 32 * 32;
    uint32_t most[ROWS] = {0}, largest = 0, sum = 0;
    float limit;
    for (int32_t k = 0; k < count; k += ROWS) {
        uint32_t bits[ROWS] = {0};
        memcpy(bits, o->values + k, (size_t)(count - k < ROWS ? count - k : ROWS) * sizeof *bits);
        for (int r = 0; r < ROWS; ++r) {
            const uint32_t size = bits[r] & 0x7fffffff;
            most[r] = size > most[r] ? size : most[r];
        }
    }
    for (int r = 0; r < ROWS; ++r) largest = most[r] > largest ? most[r] : largest;
    memcpy(&limit, &largest, sizeof limit);
    const float inverse = limit > 1e-30f && largest < infinite ? FULL / limit : 0.0f;
    o->step = largest < infinite ? limit / FULL : NAN;
    for (int32_t k = 0; k < filled; k += ROWS) {
        float v[ROWS] = {0};
        uint32_t bits[ROWS];
        if (k < count) memcpy(v, o->values + k, (size_t)(count - k < ROWS ? count - k : ROWS) * sizeof *v);
        for (int r = 0; r < ROWS; ++r) v[r] = v[r] * inverse + 12582912.0f; /* 1.5 * 2^23: the last bit counts ones */
        memcpy(bits, v, sizeof bits);
        for (int r = 0; r < ROWS; ++r) codes[k + r] = (int16_t)(bits[r] & 0xffff);
    }
    for (int32_t k = 0; k < filled; k += 8) {
        prefix[k / 8] = sum;
        for (int r = 0; r < 8; ++r) sum += (uint32_t)codes[k + r];
        arrange(codes + k);
    }
    prefix[filled / 8] = sum;
    o->codes = codes;
    o->prefix = prefix;
}
//@
