/* Place documents in rows, and find the documents of rows. */

#ifndef HEADRACE_PACK_H
#define HEADRACE_PACK_H

#include "gather.h"

#define WORD_BITS 64

/* The rooms left in rows: a bit for each room, and a summary bit for each word that is not 0. */
typedef struct {
    uint64_t *mask;
    uint64_t *summary;
    int64_t groups; /* words of the summary */
} rooms;

static inline int64_t lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
static inline int64_t highest_bit(uint64_t word) { return WORD_BITS - 1 - __builtin_clzll(word); }

/* Return the smallest room >= `room`, or -1. */
static int64_t room_from(const rooms *of, int64_t room) {
    int64_t place = room / WORD_BITS;
    uint64_t word = of->mask[place] >> (room % WORD_BITS);
    if (word)
        return room + lowest_bit(word);
    place++;
    int64_t group = place / WORD_BITS;
    if (group >= of->groups)
        return -1;
    word = of->summary[group] >> (place % WORD_BITS) << (place % WORD_BITS);
    while (!word) {
        if (++group == of->groups)
            return -1;
        word = of->summary[group];
    }
    place = group * WORD_BITS + lowest_bit(word);
    return place * WORD_BITS + lowest_bit(of->mask[place]);
}

/* Return the largest room, or -1. */
static int64_t greatest_room(const rooms *of) {
    for (int64_t group = of->groups - 1; group >= 0; group--) {
        if (of->summary[group]) {
            const int64_t place = group * WORD_BITS + highest_bit(of->summary[group]);
            return place * WORD_BITS + highest_bit(of->mask[place]);
        }
    }
    return -1;
}

static void add_room(rooms *to, int64_t room) {
    const int64_t place = room / WORD_BITS;
    to->mask[place] |= UINT64_C(1) << (room % WORD_BITS);
    to->summary[place / WORD_BITS] |= UINT64_C(1) << (place % WORD_BITS);
}

static void remove_room(rooms *from, int64_t room) {
    const int64_t place = room / WORD_BITS;
    from->mask[place] &= ~(UINT64_C(1) << (room % WORD_BITS));
    if (!from->mask[place])
        from->summary[place / WORD_BITS] &= ~(UINT64_C(1) << (place % WORD_BITS));
}

/* A piece of a document: its row, the document, its start and its length. */
enum { ROW, DOCUMENT, START, TAKEN, PACKED };

/* The arguments of `best_fit`, as for headrace.order.packing.best_fit. */
typedef struct {
    const int64_t *documents;
    const int64_t *starts;
    const int64_t *sizes;
    int64_t count;
    int64_t length;
    int64_t cut;
    int64_t most_rows;
    int64_t *out; /* (documents + most_rows, 4): receives the pieces */
} packing;

typedef struct {
    int64_t pieces; /* -1 if there are not enough rows */
    int64_t rows;
} packed;

/* Place documents; `last` has the latest row with each room, and `before` the previous row with the
 * same room, for each row. */
static packed place_documents(const packing *of, rooms *left, int64_t *last, int64_t *before) {
    packed found = {0, 0};
    for (int64_t i = 0; i < of->count; i++) {
        int64_t start = of->starts[i], size = of->sizes[i];
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
            piece[START] = start;
            piece[TAKEN] = taken;
            if (room > taken) {
                before[row] = last[room - taken];
                last[room - taken] = row;
                add_room(left, room - taken);
            }
            start += taken;
            size -= taken;
        }
    }
    return found;
}

/* Do the same as headrace.order.packing.best_fit; -2 pieces without enough memory. */
static packed best_fit(const packing *of) {
    const int64_t words = of->length / WORD_BITS + 1, groups = (words - 1) / WORD_BITS + 1;
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

/* A packed group: the address of the first piece of each row (int64), and the number of these; the
 * address of its pieces, five int32 each, and their number. */
enum { STARTS, START_COUNT, TABLE, TABLE_ROWS, GROUP };
enum { GROUP_PIECE = 5 };

/* The rows whose pieces are requested. */
typedef struct {
    const array *groups; /* (groups, 4), as above */
    const array *which;  /* (rows,): the group of each */
    const array *rows;   /* (rows,): the index of each in its group */
} wanted_rows;

/* Return the `*count` pieces of a row; NULL if it is not in its group. */
static const int32_t *pieces_of_row(const wanted_rows *of, int64_t i, int64_t *count) {
    const int64_t which = ints_of(of->which)[i], row = ints_of(of->rows)[i];
    if (which < 0 || which >= of->groups->shape[0])
        return NULL;
    const int64_t *group = ints_of(of->groups) + which * GROUP;
    const int64_t *starts = (const int64_t *)(uintptr_t)group[STARTS];
    if (row < 0 || row + 1 >= group[START_COUNT] || starts[row] < 0 ||
        starts[row + 1] < starts[row] || starts[row + 1] > group[TABLE_ROWS])
        return NULL;
    *count = starts[row + 1] - starts[row];
    return (const int32_t *)(uintptr_t)group[TABLE] + starts[row] * GROUP_PIECE;
}

/* Count the pieces of rows and return the total, -1 if a row lies in no group. */
static int64_t count_pieces(const wanted_rows *of, int64_t *counts) {
    int64_t total = 0;
    for (int64_t i = 0; i < of->rows->size; i++) {
        if (pieces_of_row(of, i, &counts[i]) == NULL)
            return -1;
        total += counts[i];
    }
    return total;
}

/* Copy the pieces of rows: the document of each, counted from the first of its group, and the other
 * numbers. Returns whether each row lies in a group and there is room for all pieces. */
static bool take_pieces(const wanted_rows *of, const int64_t *firsts, const array *sample_ids,
                        const array *table) {
    int64_t at = 0, count;
    for (int64_t i = 0; i < of->rows->size; i++) {
        const int32_t *piece = pieces_of_row(of, i, &count);
        if (piece == NULL || count > sample_ids->size - at || count > table->shape[0] - at)
            return false;
        for (int64_t end = at + count; at < end; at++, piece += GROUP_PIECE) {
            ints_of(sample_ids)[at] = firsts[i] + piece[0];
            for (int64_t k = 0; k < GROUP_PIECE - 1; k++)
                ints_of(table)[at * (GROUP_PIECE - 1) + k] = piece[k + 1];
        }
    }
    return true;
}

#endif
