/* XXH3 of bytes while they are gathered.
 *
 * The library's function is as fast, but every call from Python releases Python's lock and must
 * get it back; this one runs in the loop that gathers the bytes.
 *
 * Source: the XXH3 algorithm of the xxHash specification, 64 bits, no seed, the default secret, for
 * inputs of more than 240 bytes. Tests compare it with the library.
 */

#ifndef HEADRACE_HASH_H
#define HEADRACE_HASH_H

#include "arrays.h"

/* The shortest input; XXH3 has other algorithms for shorter ones. */
#define SHORTEST 241
#define STRIPE 64
#define STRIPES 16 /* of a block; each uses the secret 8 bytes further on */
/* Added at once; the last block of an input may be shorter. */
#define BLOCK_BYTES (STRIPE * STRIPES)
#define LANES 8

#define SCRAMBLE_AT 128 /* an offset in the secret, as the following two */
#define LAST_AT 121
#define MERGE_AT 11

#define PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME_3 UINT64_C(0x165667B19E3779F9)
#define PRIME_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME_5 UINT64_C(0x27D4EB2F165667C5)
#define SHORT_1 UINT64_C(0x9E3779B1)
#define SHORT_2 UINT64_C(0x85EBCA77)
#define SHORT_3 UINT64_C(0xC2B2AE3D)
#define AVALANCHE UINT64_C(0x165667919E3779F9)

static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

static inline uint64_t word_at(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static void begin_sums(uint64_t *sums) {
    static const uint64_t first[LANES] = {SHORT_3, PRIME_1, PRIME_2, PRIME_3,
                                          PRIME_4, SHORT_2, PRIME_5, SHORT_1};
    memcpy(sums, first, sizeof first);
}

/* Add a stripe: the product of the halves of each word, and its neighbour. */
static inline void add_stripe(const uint8_t *from, const uint8_t *secret, uint64_t *sums) {
    for (int lane = 0; lane < LANES; lane++) {
        const uint64_t word = word_at(from + 8 * lane);
        const uint64_t keyed = word ^ word_at(secret + 8 * lane);
        sums[lane ^ 1] += word;
        sums[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
}

static void add_stripes_anywhere(const uint8_t *from, int64_t count, const uint8_t *secret,
                                 uint64_t *sums) {
    for (int64_t i = 0; i < count; i++)
        add_stripe(from + i * STRIPE, secret + 8 * i, sums);
}

static void add_blocks_anywhere(const uint8_t *from, int64_t blocks, uint64_t *sums) {
    for (int64_t block = 0; block < blocks; block++) {
        add_stripes_anywhere(from + block * BLOCK_BYTES, STRIPES, SECRET, sums);
        for (int lane = 0; lane < LANES; lane++) {
            const uint64_t mixed =
                sums[lane] ^ (sums[lane] >> 47) ^ word_at(SECRET + SCRAMBLE_AT + 8 * lane);
            sums[lane] = mixed * SHORT_1;
        }
    }
}

#if HAS_AVX2_PATH

WITH_AVX2 static inline __m256i
add_half_avx2(__m256i sums, const uint8_t *from, const uint8_t *secret) {
    const __m256i words = _mm256_loadu_si256((const __m256i *)from);
    const __m256i keyed = _mm256_xor_si256(words, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i neighbours = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(_mm256_add_epi64(sums, neighbours), product);
}

WITH_AVX2 static inline __m256i scramble_avx2(__m256i sums,
                                                                    const uint8_t *secret) {
    const __m256i prime = _mm256_set1_epi64x((long long)SHORT_1);
    __m256i mixed = _mm256_xor_si256(sums, _mm256_srli_epi64(sums, 47));
    mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i low = _mm256_mul_epu32(mixed, prime);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

WITH_AVX2 static void
add_stripes_avx2(const uint8_t *from, int64_t count, const uint8_t *secret, uint64_t *sums) {
    __m256i one = _mm256_loadu_si256((const __m256i *)sums);
    __m256i other = _mm256_loadu_si256((const __m256i *)(sums + 4));
    for (int64_t i = 0; i < count; i++) {
        one = add_half_avx2(one, from + i * STRIPE, secret + 8 * i);
        other = add_half_avx2(other, from + i * STRIPE + 32, secret + 8 * i + 32);
    }
    _mm256_storeu_si256((__m256i *)sums, one);
    _mm256_storeu_si256((__m256i *)(sums + 4), other);
}

WITH_AVX2 static void add_blocks_avx2(const uint8_t *from, int64_t blocks,
                                                            uint64_t *sums) {
    __m256i one = _mm256_loadu_si256((const __m256i *)sums);
    __m256i other = _mm256_loadu_si256((const __m256i *)(sums + 4));
    for (int64_t block = 0; block < blocks; block++, from += BLOCK_BYTES) {
        for (int i = 0; i < STRIPES; i++) {
            one = add_half_avx2(one, from + i * STRIPE, SECRET + 8 * i);
            other = add_half_avx2(other, from + i * STRIPE + 32, SECRET + 8 * i + 32);
        }
        one = scramble_avx2(one, SECRET + SCRAMBLE_AT);
        other = scramble_avx2(other, SECRET + SCRAMBLE_AT + 32);
    }
    _mm256_storeu_si256((__m256i *)sums, one);
    _mm256_storeu_si256((__m256i *)(sums + 4), other);
}

#endif

static void (*add_stripes)(const uint8_t *, int64_t, const uint8_t *, uint64_t *) =
    add_stripes_anywhere;
/* Add whole blocks; none of them may be the last of an input. */
static void (*add_blocks)(const uint8_t *, int64_t, uint64_t *) = add_blocks_anywhere;

/* Choose the fastest variant for this processor; called once, at the start. */
static void choose_hash(void) {
#if HAS_AVX2_PATH
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        add_stripes = add_stripes_avx2;
        add_blocks = add_blocks_avx2;
    }
#endif
}

/* Multiply to 128 bits; return the lower half xor the upper. */
static inline uint64_t fold(uint64_t one, uint64_t other) {
    const uint64_t low = one & 0xFFFFFFFF, high = one >> 32;
    const uint64_t other_low = other & 0xFFFFFFFF, other_high = other >> 32;
    const uint64_t lowest = low * other_low;
    const uint64_t middle = high * other_low, right = low * other_high;
    const uint64_t carry = (lowest >> 32) + (middle & 0xFFFFFFFF) + right;
    const uint64_t upper = high * other_high + (middle >> 32) + (carry >> 32);
    return upper ^ ((carry << 32) | (lowest & 0xFFFFFFFF));
}

/* Add an input's last block, and return the hash.
 *
 * `end` is the end of the input, and at least 64 bytes before it are readable; the block has `left`
 * bytes. The input has `size` bytes, at least `SHORTEST`; `sums` are those of all blocks before.
 */
static uint64_t end_sums(const uint8_t *end, int64_t left, int64_t size, uint64_t *sums) {
    add_stripes(end - left, (left - 1) / STRIPE, SECRET, sums);
    add_stripes(end - STRIPE, 1, SECRET + LAST_AT, sums);
    uint64_t total = (uint64_t)size * PRIME_1;
    for (int pair = 0; pair < LANES / 2; pair++) {
        const uint8_t *secret = SECRET + MERGE_AT + 16 * pair;
        total += fold(sums[2 * pair] ^ word_at(secret), sums[2 * pair + 1] ^ word_at(secret + 8));
    }
    total ^= total >> 37;
    total *= AVALANCHE;
    return total ^ (total >> 32);
}

/* Hash an input; 0 if it is shorter than `SHORTEST`. */
static uint64_t hash_of(const uint8_t *from, int64_t size) {
    if (size < SHORTEST)
        return 0;
    uint64_t sums[LANES];
    begin_sums(sums);
    const int64_t blocks = (size - 1) / BLOCK_BYTES;
    add_blocks(from, blocks, sums);
    return end_sums(from + size, size - blocks * BLOCK_BYTES, size, sums);
}

#endif
