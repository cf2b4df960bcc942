/* Find rows for documents, and copy documents into rows. */

#ifndef HEADRACE_PACK_H
#define HEADRACE_PACK_H

#include "gather.h"

#define WORD 64
#define SPANS_AHEAD 8 /* that are on their way while one is copied (arbitrary) */

/* Which rooms rows have left: a bit for each room, and one for each word that is not 0. */
typedef struct {
    uint64_t *mask;
    uint64_t *summary;
    int64_t groups; /* words of the summary */
} rooms;

static inline int64_t lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
static inline int64_t highest_bit(uint64_t word) { return WORD - 1 - __builtin_clzll(word); }

/* Return the least room from `room` on, or -1. */
static int64_t room_from(const rooms *of, int64_t room) {
    int64_t place = room / WORD;
    uint64_t word = of->mask[place] >> (room % WORD);
    if (word)
        return room + lowest_bit(word);
    place++;
    int64_t group = place / WORD;
    if (group >= of->groups)
        return -1;
    word = of->summary[group] >> (place % WORD) << (place % WORD);
    while (!word) {
        if (++group == of->groups)
            return -1;
        word = of->summary[group];
    }
    place = group * WORD + lowest_bit(word);
    return place * WORD + lowest_bit(of->mask[place]);
}

/* Return the greatest room, or -1. */
static int64_t greatest_room(const rooms *of) {
    for (int64_t group = of->groups - 1; group >= 0; group--) {
        if (of->summary[group]) {
            const int64_t place = group * WORD + highest_bit(of->summary[group]);
            return place * WORD + highest_bit(of->mask[place]);
        }
    }
    return -1;
}

static void add_room(rooms *to, int64_t room) {
    const int64_t place = room / WORD;
    to->mask[place] |= UINT64_C(1) << (room % WORD);
    to->summary[place / WORD] |= UINT64_C(1) << (place % WORD);
}

static void remove_room(rooms *from, int64_t room) {
    const int64_t place = room / WORD;
    from->mask[place] &= ~(UINT64_C(1) << (room % WORD));
    if (!from->mask[place])
        from->summary[place / WORD] &= ~(UINT64_C(1) << (place % WORD));
}

/* A piece of a document: its row, the document, where it begins and how long it is. */
enum { ROW, DOCUMENT, BEGIN, TAKEN, PACKED };

/* What `best_fit` is given, as headrace.order.packing.best_fit takes it. */
typedef struct {
    const int64_t *documents;
    const int64_t *begins;
    const int64_t *sizes;
    int64_t count;
    int64_t length;
    int64_t cut;
    int64_t most_rows;
    int64_t *out; /* (documents + most_rows, 4): takes the pieces */
} packing;

typedef struct {
    int64_t pieces; /* -1 if they need more rows */
    int64_t rows;
} packed;

/* Place documents; `last` has the row that came last to each room, `before`, for each row, the one
 * that came before it. */
static packed place_documents(const packing *of, rooms *left, int64_t *last, int64_t *before) {
    packed found = {0, 0};
    for (int64_t i = 0; i < of->count; i++) {
        int64_t begin = of->begins[i], size = of->sizes[i];
        while (size > 0) {
            int64_t row, room = size <= of->length ? room_from(left, size) : -1;
            if (room < 0 && of->cut) {
                room = greatest_room(left);
                if (room < of->cut)
                    room = -1;
            }
            if (room < 0) {
                if (found.rows == of->most_rows)
                    return (packed){-1, found.rows};
                row = found.rows++;
                room = of->length;
            } else {
                row = last[room];
                last[room] = before[row];
                if (last[room] < 0)
                    remove_room(left, room);
            }
            const int64_t taken = least(size, room);
            int64_t *piece = of->out + found.pieces++ * PACKED;
            piece[ROW] = row;
            piece[DOCUMENT] = of->documents[i];
            piece[BEGIN] = begin;
            piece[TAKEN] = taken;
            if (room > taken) {
                before[row] = last[room - taken];
                last[room - taken] = row;
                add_room(left, room - taken);
            }
            begin += taken;
            size -= taken;
        }
    }
    return found;
}

/* Do what headrace.order.packing.best_fit does; -2 pieces without memory. */
static packed best_fit(const packing *of) {
    const int64_t words = of->length / WORD + 1, groups = (words - 1) / WORD + 1;
    rooms left = {calloc((size_t)words, 8), calloc((size_t)groups, 8), groups};
    int64_t *last = malloc((size_t)(of->length + 1) * sizeof *last);
    int64_t *before = malloc((size_t)most(1, of->most_rows) * sizeof *before);
    packed found = {-2, 0};
    if (left.mask != NULL && left.summary != NULL && last != NULL && before != NULL) {
        memset(last, 0xFF, (size_t)(of->length + 1) * sizeof *last); /* -1 each */
        found = place_documents(of, &left, last, before);
    }
    free(left.mask);
    free(left.summary);
    free(last);
    free(before);
    return found;
}

/* Copy spans of bytes, each to a place of its own.
 *
 * Returns whether all of them lie in the memory and have room; else none is copied.
 */
static bool place_spans(const array *memory, const array *begins, const array *lengths,
                        const array *places, const array *out) {
    const int64_t count = begins->size;
    const int64_t *from = ints_of(begins), *size = ints_of(lengths), *to = ints_of(places);
    if (lengths->size < count || places->size < count)
        return false;
    for (int64_t i = 0; i < count; i++) {
        /* Nothing is added that could pass the greatest number. */
        if (size[i] < 0 || from[i] < 0 || from[i] > memory->size - size[i] || to[i] < 0 ||
            to[i] > out->size - size[i])
            return false;
    }
    for (int64_t i = 0; i < count + SPANS_AHEAD; i++) {
        if (i < count)
            fetch_all(bytes_of(memory), from[i], size[i]);
        const int64_t own = i - SPANS_AHEAD;
        if (own >= 0)
            memcpy(bytes_to(out) + to[own], bytes_of(memory) + from[own], (size_t)size[own]);
    }
    return true;
}

#endif
