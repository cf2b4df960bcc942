/* Scale images exactly as docs/augmentation.md defines, with integers.
 *
 * `headrace.server.stages.images.resample` does the same with NumPy. Compiled without fused
 * multiply-adds, which would round the weights differently.
 */

#ifndef HEADRACE_IMAGES_H
#define HEADRACE_IMAGES_H

#include "arrays.h"

#include <math.h>

enum { WEIGHT_BITS = 14, KEPT_SHIFT = 8, LAST_SHIFT = 2 * WEIGHT_BITS - KEPT_SHIFT };
enum { COLOURS = 3, PIXEL = 4, ROWS_AT_ONCE = 4, IMAGE_NUMBERS = 14 };
enum { ROWS_AHEAD = 4, LINE_BYTES = 64 }; /* 2 to 6 are equally fast, 12 slower (measured) */

/* How an image is cropped and scaled. */
typedef struct {
    int64_t stride, lanes;                /* pixels per row, bytes per pixel */
    int64_t top, left, height, width;     /* the box that is scaled */
    int64_t size_y, size_x;               /* the size to scale it to */
    int64_t first_y, first_x, rows, columns; /* the part of the result that is kept */
    int64_t flip_y, flip_x;               /* whether that part is flipped */
} image_part;

/* The first source pixel of each pixel of a scaled line, and the weights of the source pixels. */
typedef struct {
    int32_t *firsts;
    int16_t *weights;
    int64_t taps; /* weights per pixel, an even number, padded with zeros */
} image_weights;

static bool weigh(int64_t length, int64_t size, int64_t first, int64_t count, image_weights *into) {
    const double scale = (double)length / (double)size;
    const double support = scale > 1.0 ? scale : 1.0;
    double *near = malloc(sizeof *near * (2 * (size_t)support + 4));
    const int64_t taps = (2 * (int64_t)support + 4) & ~(int64_t)1;
    into->taps = 2;
    into->firsts = malloc(sizeof *into->firsts * (size_t)count);
    into->weights = calloc((size_t)(count * taps), sizeof *into->weights);
    if (near == NULL || into->firsts == NULL || into->weights == NULL) {
        free(near);
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        const double centre = ((double)(first + i) + 0.5) * scale;
        /* Numbers below zero are cut off, so conversion rounds down. */
        const int64_t start = most((int64_t)(centre - support + 0.5), 0);
        const int64_t end = least((int64_t)(centre + support + 0.5), length);
        int16_t *weights = into->weights + i * taps;
        double total = 0.0;
        for (int64_t place = start; place < end; place++) {
            const double far = fabs(((double)place + 0.5 - centre) / support);
            near[place - start] = far < 1.0 ? 1.0 - far : 0.0;
            total += near[place - start];
        }
        int32_t left = 1 << WEIGHT_BITS;
        int64_t best = 0;
        for (int64_t tap = 0; tap < end - start; tap++) {
            const double share = near[tap] / total * (1 << WEIGHT_BITS);
            weights[tap] = (int16_t)(share + 0.5);
            left -= weights[tap];
            if (weights[tap] > weights[best])
                best = tap;
        }
        weights[best] = (int16_t)(weights[best] + left);
        into->firsts[i] = (int32_t)start;
        into->taps = most(into->taps, (end - start + 1) & ~(int64_t)1);
    }
    free(near);
    /* Give each pixel as many weights as the one with the most has. */
    for (int64_t i = 1; into->taps < taps && i < count; i++)
        memmove(into->weights + i * into->taps, into->weights + i * taps,
                sizeof *into->weights * (size_t)into->taps);
    return true;
}

/* Compute weighted sums of `size` bytes of adjacent rows; in `kept`, the sums of neighbouring
 * pixels are `step` items apart. Rows from `rows` on have no weight. */
TWICE static void weigh_bytes(const uint8_t *from, int64_t stride, int64_t rows,
                              const int16_t *weights, int64_t taps, int64_t size, int64_t lanes,
                              int64_t step, int16_t *kept) {
    for (int64_t at = 0; at < size; at += 256) {
        int32_t sums[256];
        const int64_t count = least(size - at, 256);
        for (int64_t i = 0; i < count; i++)
            sums[i] = 1 << (KEPT_SHIFT - 1);
        for (int64_t tap = 0; tap < least(taps, rows); tap++) {
            const uint8_t *row = from + tap * stride + at;
            const int32_t weight = weights[tap];
            if (weight)
                for (int64_t i = 0; i < count; i++)
                    sums[i] += row[i] * weight;
        }
        for (int64_t i = 0, to = at / lanes * step; i < count; i += lanes, to += step)
            for (int64_t lane = 0; lane < lanes; lane++)
                kept[to + lane] = (int16_t)(sums[i + lane] >> KEPT_SHIFT);
    }
}

static void weigh_pixels(const int16_t *kept, int64_t step, const int16_t *weights, int64_t taps,
                         int64_t channels, uint8_t *out) {
    for (int64_t channel = 0; channel < channels; channel++) {
        int32_t sum = 1 << (LAST_SHIFT - 1);
        for (int64_t tap = 0; tap < taps; tap++)
            sum += kept[tap * step + channel] * weights[tap];
        out[channel] = (uint8_t)(sum >> LAST_SHIFT);
    }
}

#if HAS_AVX2_PATH
/* Rows of the image to prefetch while others are summed: those that only later rows of the result
 * need. Cached images lie in main memory; without prefetching, scaling takes twice the time. */
typedef struct {
    const uint8_t *from;
    int64_t rows;
} rows_ahead;

/* Do the same as `weigh_bytes` for at least eight pixels of four bytes, eight at a time. */
WITH_AVX2 static void weigh_bytes_wide(const uint8_t *from, int64_t stride, int64_t rows,
                                       const int16_t *weights, int64_t taps, int64_t pixels,
                                       int64_t step, int16_t *kept, rows_ahead ahead) {
    const __m256i none = _mm256_setzero_si256();
    for (int64_t next = 0; next < pixels; next += 8) {
        /* The last ones overlap those before. */
        const int64_t at = least(next, pixels - 8);
        if (next % (LINE_BYTES / PIXEL) == 0)
            for (int64_t row = 0; row < ahead.rows; row++)
                __builtin_prefetch(ahead.from + row * stride + at * PIXEL);
        /* Pixels 0 and 4, 1 and 5, 2 and 6, 3 and 7. */
        __m256i sums[4];
        for (int i = 0; i < 4; i++)
            sums[i] = _mm256_set1_epi32(1 << (KEPT_SHIFT - 1));
        for (int64_t tap = 0; tap < taps; tap += 2) {
            int32_t pair;
            memcpy(&pair, weights + tap, sizeof pair);
            if (pair == 0)
                continue;
            const uint8_t *one = from + least(tap, rows - 1) * stride + at * PIXEL;
            const uint8_t *two = from + least(tap + 1, rows - 1) * stride + at * PIXEL;
            const __m256i a = _mm256_loadu_si256((const __m256i *)one);
            const __m256i b = _mm256_loadu_si256((const __m256i *)two);
            const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
            const __m256i by = _mm256_set1_epi32(pair);
            const __m256i pairs[4] = {
                _mm256_unpacklo_epi8(low, none), _mm256_unpackhi_epi8(low, none),
                _mm256_unpacklo_epi8(high, none), _mm256_unpackhi_epi8(high, none)};
            for (int i = 0; i < 4; i++)
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs[i], by));
        }
        for (int i = 0; i < 4; i += 2) {
            const __m256i made = _mm256_packs_epi32(_mm256_srai_epi32(sums[i], KEPT_SHIFT),
                                                    _mm256_srai_epi32(sums[i + 1], KEPT_SHIFT));
            const __m128i first = _mm256_castsi256_si128(made);
            const __m128i second = _mm256_extracti128_si256(made, 1);
            int16_t *to = kept + (at + i) * step;
            _mm_storel_epi64((__m128i *)to, first);
            _mm_storeh_pd((double *)(to + step), _mm_castsi128_pd(first));
            _mm_storel_epi64((__m128i *)(to + 4 * step), second);
            _mm_storeh_pd((double *)(to + 5 * step), _mm_castsi128_pd(second));
        }
    }
}

/* Return the pixels of four rows, whose sums are interleaved in `kept`, as 16-bit numbers. */
WITH_AVX2 static inline __m256i weigh_four_pixels(const int16_t *kept, const int16_t *weights,
                                                  int64_t taps) {
    __m256i even = _mm256_set1_epi32(1 << (LAST_SHIFT - 1)), odd = even;
    for (int64_t tap = 0; tap < taps; tap += 2) {
        int32_t pair;
        memcpy(&pair, weights + tap, sizeof pair);
        const __m256i by = _mm256_set1_epi32(pair);
        const __m256i a = _mm256_loadu_si256((const __m256i *)(kept + tap * 16));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(kept + (tap + 1) * 16));
        even = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), by));
        odd = _mm256_add_epi32(odd, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), by));
    }
    return _mm256_packs_epi32(_mm256_srai_epi32(even, LAST_SHIFT),
                              _mm256_srai_epi32(odd, LAST_SHIFT));
}

/* Compute the pixels of four rows for all columns, two at a time.
 *
 * Two pixels are written as eight bytes; the next ones overwrite the last two. Rows are written from
 * the last to the first, which may be in the same place. */
WITH_AVX2 static void weigh_four_rows(const int16_t *kept, int64_t start, const image_part *part,
                                      const image_weights *across, uint8_t *const *out) {
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, 4, 5, 6, 12, 13, 14, -1, -1,
                                           0, 1, 2, 8, 9, 10, -1, -1, 4, 5, 6, 12, 13, 14, -1, -1);
    const int64_t last = part->columns - 1, taps = across->taps, step = PIXEL * ROWS_AT_ONCE;
    for (int64_t i = 0; i <= last; i += 2) {
        const int64_t next = least(i + 1, last);
        const int64_t x = part->flip_x ? last - i : i, y = part->flip_x ? last - next : next;
        const int16_t *sums_x = kept + (across->firsts[x] - start) * step;
        const int16_t *sums_y = kept + (across->firsts[y] - start) * step;
        const int16_t *by_x = across->weights + x * taps, *by_y = across->weights + y * taps;
        __m256i one, two;
        if (taps == 4) { /* as most crops have; compilers unroll this */
            one = weigh_four_pixels(sums_x, by_x, 4);
            two = weigh_four_pixels(sums_y, by_y, 4);
        } else {
            one = weigh_four_pixels(sums_x, by_x, taps);
            two = weigh_four_pixels(sums_y, by_y, taps);
        }
        uint64_t made[ROWS_AT_ONCE];
        _mm256_storeu_si256((__m256i *)made,
                            _mm256_shuffle_epi8(_mm256_packus_epi16(one, two), order));
        if (i + 2 <= last)
            for (int row = ROWS_AT_ONCE - 1; row >= 0; row--)
                memcpy(out[row] + i * COLOURS, made + row, sizeof *made);
        else
            for (int row = ROWS_AT_ONCE - 1; row >= 0; row--)
                memcpy(out[row] + i * COLOURS, made + row, (size_t)((next - i + 1) * COLOURS));
    }
}
#endif

/* Return the end of the image rows that the scaled rows up to `place` need. */
static inline int64_t end_of_rows(const image_part *part, const image_weights *down,
                                  int64_t place) {
    return least(down->firsts[least(place, part->rows - 1)] + down->taps, part->height);
}

#if HAS_AVX2_PATH
/* Add eight weighted numbers of one image to those of another, as float32. */
WITH_F16C static inline __m128i mix_eight(__m128i own, __m128i other, __m256 share, __m256 rest) {
    const __m256 sum = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtph_ps(own), share),
                                     _mm256_mul_ps(_mm256_cvtph_ps(other), rest));
    return _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

WITH_F16C static void mix_halves_wide(const uint8_t *own, const uint8_t *other, float share,
                                      float rest, int64_t size, uint8_t *out) {
    const __m256 by = _mm256_set1_ps(share), by_rest = _mm256_set1_ps(rest);
    int64_t at = 0;
    for (; at + 16 <= size; at += 16) {
        const __m128i one = _mm_loadu_si128((const __m128i *)(own + at));
        const __m128i two = _mm_loadu_si128((const __m128i *)(other + at));
        _mm_storeu_si128((__m128i *)(out + at), mix_eight(one, two, by, by_rest));
    }
    __m128i one = _mm_setzero_si128(), two = one;
    memcpy(&one, own + at, (size_t)(size - at));
    memcpy(&two, other + at, (size_t)(size - at));
    const __m128i last = mix_eight(one, two, by, by_rest);
    memcpy(out + at, &last, (size_t)(size - at));
}
#endif

/* Number types of mixed images: see `_LOOP_KINDS` in `headrace.server.stages.images.mixing`. */
enum { HALVES = 0, BRAINS = 1, FLOATS = 2 };

static inline float float_of_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline uint32_t bits_of_float(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* Mix bfloat16 numbers, the upper halves of float32; the result is rounded once, to even. */
TWICE static void mix_brains(const uint8_t *restrict own, const uint8_t *restrict other,
                             float share, float rest, int64_t size, uint8_t *restrict out) {
    for (int64_t i = 0; i < size / 2; i++) {
        uint16_t one, two;
        memcpy(&one, own + 2 * i, sizeof one);
        memcpy(&two, other + 2 * i, sizeof two);
        const float sum = float_of_bits((uint32_t)one << 16) * share +
                          float_of_bits((uint32_t)two << 16) * rest;
        const uint32_t bits = bits_of_float(sum);
        const uint16_t made = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        memcpy(out + 2 * i, &made, sizeof made);
    }
}

TWICE static void mix_floats(const uint8_t *restrict own, const uint8_t *restrict other,
                             float share, float rest, int64_t size, uint8_t *restrict out) {
    for (int64_t i = 0; i < size / 4; i++) {
        float one, two;
        memcpy(&one, own + 4 * i, sizeof one);
        memcpy(&two, other + 4 * i, sizeof two);
        const float made = one * share + two * rest;
        memcpy(out + 4 * i, &made, sizeof made);
    }
}

/* Mix two images, at any alignment; `shares` has the share of each.
 * Returns 0; -1 if the processor does not support float16; -2 if sizes differ. */
static int mix_pixels(const array *own, const array *other, const array *shares, int64_t kind,
                      const array *out) {
    if (own->size != other->size || own->size != out->size || kind < HALVES || kind > FLOATS ||
        own->size % (kind == FLOATS ? 4 : 2) || shares->size != 2)
        return -2;
    const float by = (float)doubles_of(shares)[0], rest = (float)doubles_of(shares)[1];
    if (kind == BRAINS)
        mix_brains(bytes_of(own), bytes_of(other), by, rest, own->size, bytes_to(out));
    if (kind == FLOATS)
        mix_floats(bytes_of(own), bytes_of(other), by, rest, own->size, bytes_to(out));
    if (kind != HALVES)
        return 0;
#if HAS_AVX2_PATH
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        mix_halves_wide(bytes_of(own), bytes_of(other), by, rest, own->size, bytes_to(out));
        return 0;
    }
#endif
    return -1;
}

/* The tables that map the bytes of each channel of an image to their final values. */
typedef struct {
    int64_t channels, item_bytes;
    int64_t is_chw; /* whether channels come first in the output */
} level_map;

enum { LEVEL_NUMBERS = 3, LEVELS = 256 };

#define MAP_LEVELS(name, type)                                                                        \
    static void name(const uint8_t *pixels, const uint8_t *tables, const level_map *how,           \
                     int64_t count, uint8_t *out) {                                                \
        const int64_t channels = how->channels;                                                    \
        for (int64_t channel = 0; channel < channels; channel++) {                                 \
            type table[LEVELS];                                                                    \
            memcpy(table, tables + channel * (int64_t)sizeof table, sizeof table);                 \
            const int64_t step = how->is_chw ? 1 : channels;                                       \
            uint8_t *into = out + (how->is_chw ? channel * count : channel) * (int64_t)sizeof(type); \
            for (int64_t i = 0; i < count; i++)                                                    \
                memcpy(into + i * step * (int64_t)sizeof(type),                                    \
                       table + pixels[i * channels + channel], sizeof(type));                      \
        }                                                                                          \
    }

MAP_LEVELS(map_to_bytes, uint8_t)
MAP_LEVELS(map_to_halves, uint16_t)
MAP_LEVELS(map_to_words, uint32_t)

/* Write the final values of pixels; return whether the arrays fit together. */
static bool map_levels(const array *pixels, const array *tables, const array *numbers,
                    const array *out) {
    level_map how;
    if (numbers->size != LEVEL_NUMBERS)
        return false;
    memcpy(&how, numbers->data, sizeof how);
    if (how.channels < 1 || how.channels > PIXEL || pixels->size % how.channels ||
        (how.item_bytes != 1 && how.item_bytes != 2 && how.item_bytes != 4) ||
        tables->size != how.channels * LEVELS * how.item_bytes ||
        out->size / how.item_bytes != pixels->size || out->size % how.item_bytes)
        return false;
    const int64_t count = pixels->size / how.channels;
    if (how.item_bytes == 1)
        map_to_bytes(bytes_of(pixels), bytes_of(tables), &how, count, bytes_to(out));
    else if (how.item_bytes == 2)
        map_to_halves(bytes_of(pixels), bytes_of(tables), &how, count, bytes_to(out));
    else
        map_to_words(bytes_of(pixels), bytes_of(tables), &how, count, bytes_to(out));
    return true;
}

/* Count the scan markers in a JPEG file. In compressed data a zero follows each 0xff, so this finds
 * scans and, rarely, bytes of metadata. */
TWICE static int64_t count_scans(const uint8_t *from, int64_t size) {
    int64_t found = 0;
    /* In chunks whose count fits into a byte, so that the inner loop can be vectorised. */
    for (int64_t start = 0; start < size - 1; start += 255) {
        const int64_t end = least(start + 255, size - 1);
        uint8_t here = 0;
        for (int64_t i = start; i < end; i++)
            here = (uint8_t)(here + ((from[i] == 0xff) & (from[i + 1] == 0xda)));
        found += here;
    }
    return found;
}

/* Scale a part of an image; return 0, -1 without memory, -2 if the part is outside the image. */
static int resample(const array *pixels, const array *numbers, const array *out) {
    image_part part;
    if (numbers->size != IMAGE_NUMBERS)
        return -2;
    memcpy(&part, numbers->data, sizeof part);
    const int64_t limit = 1 << 28;
    for (int i = 0; i < IMAGE_NUMBERS; i++)
        if (ints_of(numbers)[i] < 0 || ints_of(numbers)[i] > limit)
            return -2;
    const int64_t lanes = part.lanes, channels = lanes == PIXEL ? COLOURS : 1;
    if ((lanes != PIXEL && lanes != 1) || part.rows < 1 || part.columns < 1 || part.height < 1 ||
        part.width < 1 || part.left + part.width > part.stride ||
        part.first_y + part.rows > part.size_y || part.first_x + part.columns > part.size_x ||
        (part.top + part.height) * part.stride > pixels->size / lanes ||
        part.rows * part.columns > out->size / channels)
        return -2;
    image_weights down = {NULL, NULL, 0}, across = {NULL, NULL, 0};
    int16_t *kept = NULL;
    int result = -1;
    if (weigh(part.height, part.size_y, part.first_y, part.rows, &down) &&
        weigh(part.width, part.size_x, part.first_x, part.columns, &across)) {
        const int64_t start = across.firsts[0];
        const int64_t end = least(across.firsts[part.columns - 1] + across.taps, part.width);
        /* Zeros follow the last pixel, for weights that are zero. */
        const int64_t step = lanes * ROWS_AT_ONCE;
        kept = calloc((size_t)((end - start + across.taps) * step), sizeof *kept);
        if (kept != NULL)
            result = 0;
#if HAS_AVX2_PATH
        const bool is_wide = lanes == PIXEL && __builtin_cpu_supports("avx2");
#endif
        for (int64_t y = 0; kept != NULL && y < part.rows; y += ROWS_AT_ONCE) {
            uint8_t *to[ROWS_AT_ONCE];
            const int64_t rows = least(ROWS_AT_ONCE, part.rows - y);
            for (int64_t row = 0; row < rows; row++) {
                const int64_t place = part.flip_y ? part.rows - 1 - y - row : y + row;
                const int64_t first = down.firsts[y + row], left = part.height - first;
                const uint8_t *from = bytes_of(pixels) +
                                      ((part.top + first) * part.stride + part.left + start) * lanes;
                const int16_t *weights = down.weights + (y + row) * down.taps;
                int16_t *into = kept + row * lanes;
                to[row] = bytes_to(out) + place * part.columns * channels;
#if HAS_AVX2_PATH
                if (is_wide && end - start >= 8) {
                    const int64_t known = end_of_rows(&part, &down, y + row + ROWS_AHEAD - 1);
                    const rows_ahead ahead = {
                        from + (known - first) * part.stride * lanes,
                        end_of_rows(&part, &down, y + row + ROWS_AHEAD) - known};
                    weigh_bytes_wide(from, part.stride * lanes, left, weights, down.taps,
                                     end - start, step, into, ahead);
                    continue;
                }
#endif
                weigh_bytes(from, part.stride * lanes, left, weights, down.taps,
                            (end - start) * lanes, lanes, step, into);
            }
#if HAS_AVX2_PATH
            if (is_wide) {
                for (int64_t row = rows; row < ROWS_AT_ONCE; row++)
                    to[row] = to[0];
                weigh_four_rows(kept, start, &part, &across, to);
                continue;
            }
#endif
            for (int64_t row = 0; row < rows; row++)
                for (int64_t i = 0; i < part.columns; i++) {
                    const int64_t x = part.flip_x ? part.columns - 1 - i : i;
                    weigh_pixels(kept + (across.firsts[x] - start) * step + row * lanes, step,
                                 across.weights + x * across.taps, across.taps, channels,
                                 to[row] + i * channels);
                }
        }
    }
    free(down.firsts);
    free(down.weights);
    free(across.firsts);
    free(across.weights);
    free(kept);
    return result;
}

#endif
