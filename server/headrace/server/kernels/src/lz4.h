/* LZ4 frames, as Arrow compresses the buffers of a block.
 *
 * What a frame states is not believed: nothing is read before or after it, and nothing is written
 * outside of where its content is to be. Its checksums are not looked at, because the checksum of
 * the whole block has been.
 *
 * Source: "LZ4 Frame Format Description", version 1.6, and "LZ4 Block Format Description".
 */

#ifndef HEADRACE_LZ4_H
#define HEADRACE_LZ4_H

#include "arrays.h"
#include "hash.h"

#define FRAME_MAGIC 0x184D2204
#define FRAME_HEAD 7 /* magic, two bytes of flags, and the checksum of the latter */
#define LEAST_MATCH 4
#define LENGTH_GOES_ON 15
#define WORD_BYTES 8
#define AT_ONCE 16
/* The bytes that a sequence without long lengths takes or makes at most (14 literals and a match of
 * 18), with what is copied beyond them (up to 31). Only the last of a frame have less room. */
#define ROOM 64
/* From so many bytes on, the C library copies faster than a loop; a multiple of AT_ONCE. */
#define MANY 128

enum {
    FRAME_VERSION = 0xC0,
    FRAME_VERSION_1 = 0x40,
    BLOCKS_HAVE_HASH = 0x10,
    FRAME_HAS_SIZE = 0x08,
    FRAME_HAS_HASH = 0x04,
    FRAME_NEEDS_OTHER = 0x03 /* a dictionary, or something that is not specified yet */
};

static inline int64_t half_word_at(const uint8_t *from) {
    return (int64_t)from[0] | (int64_t)from[1] << 8 | (int64_t)from[2] << 16 |
           (int64_t)from[3] << 24;
}

static inline int64_t short_at(const uint8_t *from) { return from[0] | from[1] << 8; }

static inline void put_word(uint8_t *to, uint64_t word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(to, &word, sizeof word);
}

/* Add what follows a length of 15; NULL if the block ends before. */
static inline const uint8_t *add_length(const uint8_t *from, const uint8_t *stop, int64_t *length) {
    uint8_t more;
    do {
        if (from == stop)
            return NULL;
        more = *from++;
        *length += more;
    } while (more == 255);
    return from;
}

/* Repeat what starts `offset` bytes before; the two may overlap. */
static void repeat(uint8_t *to, int64_t offset, int64_t length) {
    const uint8_t *from = to - offset;
    /* Each copy doubles what can be copied next. */
    while (length > 0) {
        const int64_t part = least(length, to - from);
        memcpy(to, from, (size_t)part);
        to += part;
        length -= part;
    }
}

/* Copy from elsewhere, or from AT_ONCE bytes before or more; up to 31 bytes too many. */
static inline void copy_roomy(uint8_t *to, const uint8_t *from, int64_t length) {
    const uint8_t *const stop = to + length;
    do {
        memcpy(to, from, AT_ONCE);
        memcpy(to + AT_ONCE, from + AT_ONCE, AT_ONCE);
        to += 2 * AT_ONCE;
        from += 2 * AT_ONCE;
    } while (to < stop);
}

/* Repeat what starts less than AT_ONCE bytes before; up to 15 bytes too many. */
static inline void repeat_near(uint8_t *to, int64_t offset, int64_t length) {
    /* For a pattern of each size: the factor that repeats it in a word, and the least multiple of
     * its size that is not below a word's. */
    static const uint64_t factors[WORD_BYTES] = {
        0, 0x0101010101010101, 0x0001000100010001, 0x0001000001000001,
        0x0000000100000001, 0x0000010000000001, 0x0001000000000001, 0x0100000000000001};
    static const uint8_t multiples[WORD_BYTES] = {0, 8, 8, 9, 8, 10, 12, 14};
    const int64_t near = least(length, MANY);
    int64_t at = 0, back = offset;
    if (offset < WORD_BYTES) {
        const uint64_t pattern = word_at(to - offset) & ((UINT64_C(1) << 8 * offset) - 1);
        const uint64_t word = pattern * factors[offset];
        back = multiples[offset];
        if (back == WORD_BYTES) {
            /* Without reading again what was just written. */
            for (; at < near; at += 2 * WORD_BYTES) {
                put_word(to + at, word);
                put_word(to + at + WORD_BYTES, word);
            }
        } else {
            put_word(to, word);
            at = WORD_BYTES;
        }
    }
    for (; at < near; at += WORD_BYTES)
        memcpy(to + at, to + at - back, WORD_BYTES);
    if (length > MANY)
        repeat(to + MANY, MANY / offset * offset, length - MANY);
}

/* Expand sequences of a block until there is less than ROOM, or one that is long for the room or
 * damaged; `*source` and `*target` are where it and its content start.
 *
 * This is where the time goes. The next sequence is found from the token of the one before, so
 * nothing else lies between the two, and what is short is copied at a size that is the same always.
 */
static inline void expand_roomy(const uint8_t **source, const uint8_t *stop, const uint8_t *first,
                                uint8_t **target, const uint8_t *end) {
    const uint8_t *from = *source;
    uint8_t *to = *target;
    while (stop - from >= ROOM && end - to >= ROOM) {
        const int64_t token = *from;
        int64_t literals = token >> 4, match = token & LENGTH_GOES_ON;
        const uint8_t *at = from + 1;
        uint8_t *out = to;
        if (literals == LENGTH_GOES_ON) {
            at = add_length(at, stop, &literals);
            if (at == NULL || stop - at - literals < ROOM || end - out - literals < ROOM)
                break;
            copy_roomy(out, at, literals);
        } else {
            memcpy(out, at, AT_ONCE);
        }
        const int64_t offset = short_at(at + literals);
        at = at + literals + 2;
        out += literals;
        if (offset > out - first)
            break;
        if (match < LENGTH_GOES_ON && offset >= WORD_BYTES) {
            memcpy(out, out - offset, WORD_BYTES);
            memcpy(out + WORD_BYTES, out - offset + WORD_BYTES, WORD_BYTES);
            memcpy(out + 2 * WORD_BYTES, out - offset + 2 * WORD_BYTES, 2);
            from = at;
            to = out + match + LEAST_MATCH;
            continue;
        }
        if (match == LENGTH_GOES_ON && (at = add_length(at, stop, &match)) == NULL)
            break;
        match += LEAST_MATCH;
        if (!offset || end - out - match < ROOM)
            break;
        if (offset < AT_ONCE)
            repeat_near(out, offset, match);
        else if (match > MANY)
            repeat(out, offset, match);
        else
            copy_roomy(out, out - offset, match);
        from = at;
        to = out + match;
    }
    *source = from;
    *target = to;
}

/* Expand a block to `to`, whose matches may lie anywhere from `first` on; return where it ends, or
 * NULL. */
static uint8_t *expand_block(const uint8_t *from, int64_t size, const uint8_t *first, uint8_t *to,
                             const uint8_t *end) {
    const uint8_t *const stop = from + size;
    for (;;) {
        expand_roomy(&from, stop, first, &to, end);
        if (from == stop)
            return NULL;
        const uint8_t token = *from++;
        int64_t literals = token >> 4, match = token & LENGTH_GOES_ON;
        if (literals == LENGTH_GOES_ON && (from = add_length(from, stop, &literals)) == NULL)
            return NULL;
        if (literals > stop - from || literals > end - to)
            return NULL;
        memcpy(to, from, (size_t)literals);
        from += literals;
        to += literals;
        if (from == stop)
            return to;
        if (stop - from < 2)
            return NULL;
        const int64_t offset = short_at(from);
        from += 2;
        if (match == LENGTH_GOES_ON && (from = add_length(from, stop, &match)) == NULL)
            return NULL;
        match += LEAST_MATCH;
        if (!offset || offset > to - first || match > end - to)
            return NULL;
        repeat(to, offset, match);
        to += match;
    }
}

/* Expand a frame to exactly `to_size` bytes; false if it holds another number, or is none. */
static bool expand_frame(const uint8_t *from, int64_t size, uint8_t *to, int64_t to_size) {
    if (size < FRAME_HEAD || half_word_at(from) != FRAME_MAGIC)
        return false;
    const uint8_t flags = from[4];
    const int64_t head = FRAME_HEAD + (flags & FRAME_HAS_SIZE ? 8 : 0);
    if ((flags & FRAME_VERSION) != FRAME_VERSION_1 || flags & FRAME_NEEDS_OTHER || size < head)
        return false;
    const uint8_t *const stop = from + size, *const first = to, *const end = to + to_size;
    from += head;
    for (;;) {
        if (stop - from < 4)
            return false;
        const int64_t stated = half_word_at(from), block = stated & INT32_MAX;
        from += 4;
        if (!stated)
            return to == end && stop - from == (flags & FRAME_HAS_HASH ? 4 : 0);
        const int64_t hash = flags & BLOCKS_HAVE_HASH ? 4 : 0;
        if (block > stop - from - hash)
            return false;
        if (stated != block) {
            if (block > end - to)
                return false;
            memcpy(to, from, (size_t)block);
            to += block;
        } else if ((to = expand_block(from, block, first, to, end)) == NULL) {
            return false;
        }
        from += block + hash;
    }
}

#endif
