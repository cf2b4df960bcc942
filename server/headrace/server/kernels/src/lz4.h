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
/* Bytes that are copied in one go where there is room for so many: literals, and of a match. */
#define AT_ONCE 16
#define WORD_BYTES 8

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

/* Add what follows a length of 15; NULL if the block ends before. */
static const uint8_t *add_length(const uint8_t *from, const uint8_t *stop, int64_t *length) {
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
static void repeat(uint8_t *to, int64_t offset, int64_t length, const uint8_t *end) {
    const uint8_t *from = to - offset;
    if (offset >= WORD_BYTES && end - to >= length + WORD_BYTES) {
        for (int64_t at = 0; at < length; at += WORD_BYTES)
            memcpy(to + at, from + at, WORD_BYTES);
        return;
    }
    /* Each copy doubles what can be copied next. */
    while (length > 0) {
        const int64_t part = least(length, to - from);
        memcpy(to, from, (size_t)part);
        to += part;
        length -= part;
    }
}

/* Expand a block to `to`, whose matches may lie anywhere from `first` on; return where it ends, or
 * NULL. */
static uint8_t *expand_block(const uint8_t *from, int64_t size, const uint8_t *first, uint8_t *to,
                             const uint8_t *end) {
    const uint8_t *const stop = from + size;
    while (from < stop) {
        const uint8_t token = *from++;
        int64_t literals = token >> 4, match = token & 15;
        if (literals == 15 && (from = add_length(from, stop, &literals)) == NULL)
            return NULL;
        if (literals > stop - from || literals > end - to)
            return NULL;
        if (literals <= AT_ONCE && stop - from >= AT_ONCE && end - to >= AT_ONCE)
            memcpy(to, from, AT_ONCE);
        else
            memcpy(to, from, (size_t)literals);
        from += literals;
        to += literals;
        if (from == stop)
            return to;
        if (stop - from < 2)
            return NULL;
        const int64_t offset = from[0] | from[1] << 8;
        from += 2;
        if (match == 15 && (from = add_length(from, stop, &match)) == NULL)
            return NULL;
        match += LEAST_MATCH;
        if (!offset || offset > to - first || match > end - to)
            return NULL;
        repeat(to, offset, match, end);
        to += match;
    }
    return NULL;
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
