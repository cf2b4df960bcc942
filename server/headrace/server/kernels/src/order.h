/* Permutations of the order, and the samples at places of one of its steps.
 *
 * docs/order.md has the functions; headrace.order has them in NumPy.
 */

#ifndef HEADRACE_ORDER_H
#define HEADRACE_ORDER_H

#include "arrays.h"

#define WALKED 256 /* numbers permuted together (measured: 8 ns each; 27 one by one) */

static inline uint64_t mix(uint64_t word) {
    word = (word ^ (word >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    return word ^ (word >> 31);
}

/* Return the draw of a key for a counter. */
static inline uint64_t draw(uint64_t key, uint64_t second_key, uint64_t counter) {
    return mix(mix(key + counter) ^ second_key);
}

/* Write words that hold a permutation in their lowest bits when they are sorted. */
TWICE static void sorting_words(uint64_t key, uint64_t second_key, int64_t number_bits, uint64_t *out,
                          int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = (draw(key, second_key, (uint64_t)i) >> 32) << number_bits | (uint64_t)i;
}

/* Draw numbers in [0, modulus) for consecutive counters. */
TWICE static void draw_row(uint64_t key, uint64_t second_key, uint64_t first, uint64_t modulus,
                           uint16_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t drawn = draw(key, second_key, first + (uint64_t)i) >> 32;
        out[i] = (uint16_t)((drawn * (uint32_t)modulus) >> 32);
    }
}

/* Write the tables of a network: the summand of each round, by the other half of the number. */
static void network_tables(uint64_t key, uint64_t second_key, int64_t width, int64_t height,
                           const array *out) {
    for (int64_t turn = 0; turn < out->shape[0]; turn++) {
        const int64_t size = turn % 2 ? width : height, modulus = turn % 2 ? height : width;
        draw_row(key, second_key, (uint64_t)turn << 56, (uint64_t)modulus,
                 halves_of(out) + turn * out->shape[1], least(size, out->shape[1]));
    }
}

/* The tables of a network, and the sides of its rectangle. */
typedef struct {
    const uint16_t *tables;
    int64_t turns;
    int64_t row;
    int64_t width;
    int64_t count;
} network;

static network network_of(const array *tables, int64_t width, int64_t count) {
    const network made = {halves_of(tables), tables->shape[0], tables->shape[1], width, count};
    return made;
}

/* Return whether the tables cover the halves of all numbers that `walk` may meet. */
static bool is_network(const network *of) {
    if (of->width < 1 || of->count < 1)
        return false;
    const int64_t rows = (of->count + of->width - 1) / of->width;
    return of->turns % 2 == 0 && of->row >= most(rows, of->width) && rows <= INT32_MAX;
}

/* Pass numbers, given as two halves each, once through all rounds. */
static void turn_all(const network *through, uint32_t *highs, uint32_t *lows, int64_t count) {
    const uint32_t columns = (uint32_t)through->width;
    const uint32_t rows = (uint32_t)((through->count + through->width - 1) / through->width);
    for (int64_t turn = 0; turn < through->turns; turn += 2) {
        const uint16_t *by_high = through->tables + turn * through->row;
        const uint16_t *by_low = by_high + through->row;
#pragma GCC unroll 2
        for (int64_t i = 0; i < count; i++) {
            /* A negative difference wraps around and is greater. */
            uint32_t low = lows[i] + by_high[highs[i]];
            low = low < low - columns ? low : low - columns;
            const uint32_t high = highs[i] + by_low[low];
            highs[i] = high < high - rows ? high : high - rows;
            lows[i] = low;
        }
    }
}

/* Pass numbers through a network until they are below its count. */
static void turn_numbers(const network *through, uint32_t *highs, uint32_t *lows, int64_t *out,
                         int64_t count) {
    turn_all(through, highs, lows, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t number = (int64_t)highs[i] * through->width + lows[i];
        while (number >= through->count) {
            /* A number in the surplus of the rectangle, which is rare. */
            uint32_t high = (uint32_t)(number / through->width);
            uint32_t low = (uint32_t)(number % through->width);
            turn_all(through, &high, &low, 1);
            number = (int64_t)high * through->width + low;
        }
        out[i] = number;
    }
}

/* Permute places; return false if one is not in [0, count). */
static bool walk(const network *through, const int64_t *places, int64_t *out, int64_t count) {
    uint32_t highs[WALKED], lows[WALKED];
    /* Many numbers at a time, so that their rounds do not wait for each other. */
    for (int64_t first = 0; first < count; first += WALKED) {
        const int64_t here = least(WALKED, count - first);
        for (int64_t i = 0; i < here; i++) {
            const uint64_t place = (uint64_t)places[first + i];
            if (place >= (uint64_t)through->count)
                return false;
            const uint64_t high = place / (uint64_t)through->width;
            highs[i] = (uint32_t)high;
            lows[i] = (uint32_t)(place - high * (uint64_t)through->width);
        }
        turn_numbers(through, highs, lows, out + first, here);
    }
    return true;
}

/* Do the same as `walk` for at most `WALKED` consecutive places. */
static void walk_range(const network *through, int64_t first, int64_t *out, int64_t count) {
    uint32_t highs[WALKED], lows[WALKED];
    uint32_t high = (uint32_t)(first / through->width), low = (uint32_t)(first % through->width);
    for (int64_t i = 0; i < count; i++) {
        highs[i] = high;
        lows[i] = low;
        if (++low == (uint32_t)through->width) {
            low = 0;
            high++;
        }
    }
    turn_numbers(through, highs, lows, out, count);
}

/* The entries of a step: first slot, first offset, slices, turn. */
enum { SLOT, OFFSET, SLICES, TURN, ENTRY };

/* Return how many samples all entries of a step have; 0 if they have different numbers, or if there
 * is only one entry, which is found without dividing. */
static int64_t samples_each(const int64_t *entries, int64_t count) {
    const int64_t samples = count > 2 ? entries[ENTRY + SLOT] : 0;
    for (int64_t entry = 0; entry < count; entry++)
        if (entries[entry * ENTRY + SLOT] != entry * samples)
            return 0;
    return samples;
}

/* Return the entry that contains a slot; the row after the last entry has their end. */
static inline int64_t entry_of(const int64_t *entries, int64_t count, int64_t samples,
                               int64_t slot) {
    if (samples)
        return (int64_t)((uint64_t)slot / (uint64_t)samples);
    int64_t low = 0, high = count - 2;
    while (low < high) {
        const int64_t middle = (low + high + 1) >> 1;
        if (entries[middle * ENTRY + SLOT] <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

typedef struct {
    const int64_t *entries;
    int64_t entry_count;
    int64_t samples;
    uint64_t key, second_key;
    const int64_t *inverses;
    int64_t inverse_row;
} dealer;

/* Put the offset of each slot's sample in its place. */
static void deal(const dealer *by, int64_t *slots, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = slots[i];
        const int64_t *entry =
            by->entries + entry_of(by->entries, by->entry_count, by->samples, slot) * ENTRY;
        const int64_t slices = entry[SLICES];
        int64_t place = entry[OFFSET] + (slot - entry[SLOT]) * slices;
        if (slices > 1) {
            const uint64_t drawn = draw(by->key, by->second_key, (uint64_t)place);
            const int64_t *inverses = by->inverses + slices * by->inverse_row;
            const uint64_t slope = ((drawn >> 32) * (uint64_t)inverses[0]) >> 32;
            const uint64_t turn = ((drawn & 0xFFFFFFFF) * (uint64_t)slices) >> 32;
            const uint64_t past = (uint64_t)(entry[TURN] + slices) - turn;
            const uint64_t inverse = (uint64_t)inverses[slope + 1];
            place += (int64_t)((uint32_t)(past * inverse) % (uint32_t)slices);
        }
        slots[i] = place;
    }
}

/* A piece of a step: the offset and id of its first sample, the place in its block, the block. */
enum { FROM, ID, IN_BLOCK, BLOCK, PIECE };

typedef struct {
    const int64_t *pieces;
    int64_t last; /* piece */
    const int32_t *buckets;
    int64_t bucket_count;
    int64_t shift;
    const int64_t *blocks;
} piece_table;

/* Look up samples at offsets: their ids, blocks and places in blocks. */
static void look_up(const piece_table *in, const int64_t *offsets, int64_t count, uint8_t *seen,
                    int64_t *ids, int64_t *blocks, int64_t *places) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t offset = offsets[i];
        const int64_t bucket = least(offset >> in->shift, in->bucket_count - 1);
        const int64_t *piece = in->pieces + (int64_t)in->buckets[bucket] * PIECE;
        const int64_t *last = in->pieces + in->last * PIECE;
        while (piece < last && piece[PIECE + FROM] <= offset)
            piece += PIECE;
        const int64_t further = offset - piece[FROM];
        seen[piece[BLOCK]] = 1;
        ids[i] = piece[ID] + further;
        blocks[i] = in->blocks[piece[BLOCK]];
        places[i] = piece[IN_BLOCK] + further;
    }
}

/* Find the samples at places of a step of the order, and their blocks.
 *
 * 0 ranges: (batches, 2): the places [first, end) of each batch in the step.
 * 1 whole: The permutation of the step, if it is small enough to be stored.
 * 2 tables: The tables of its network, if it is not.
 * 3 width: As for `walk`.
 * 4 entries: As headrace.order.Step.entries, with offsets counted from the first piece.
 * 5 key, 6 second_key: The keys of the lines, for these offsets.
 * 7 inverses: As headrace.order.LINE_INVERSES.
 * 8 pieces: (pieces + 1, 4): consecutive samples of one block, in the order of the layout; see the
 *   enumeration above. The last row has the end of the pieces.
 * 9 buckets, 10 shift: As for `find_spans`, for the pieces.
 * 11 blocks: The step's distinct blocks, ascending.
 * 12 found: (3, samples): receives ids, blocks and places in blocks, batch after batch.
 * 13 first: Where in `found` the first sample goes.
 * 14 touched: Receives the distinct blocks of each batch, ascending, batch after batch.
 * 15 touched_ends: Receives the end of each batch in `touched`.
 *
 * Returns 0; -1 without enough memory, -2 if the tables do not fit together.
 */
static int find_dealt(const argument *of) {
    const array *ranges = &of[0].array, *whole = &of[1].array, *entries = &of[4].array;
    const array *pieces = &of[8].array, *blocks = &of[11].array, *found = &of[12].array;
    const array *touched = &of[14].array;
    const int64_t room = found->shape[1];
    if (ranges->shape[1] != 2 || entries->shape[1] != ENTRY || entries->shape[0] < 2 ||
        pieces->shape[1] != PIECE || pieces->shape[0] < 2 || found->shape[0] != 3 ||
        of[9].array.size < 1 || of[13].number < 0 || of[13].number > room ||
        of[15].array.size < ranges->shape[0])
        return -2;
    const int64_t count = ints_of(entries)[(entries->shape[0] - 1) * ENTRY + SLOT];
    const network through = network_of(&of[2].array, of[3].number, count);
    const bool is_whole = whole->size == count;
    if (!is_whole && !is_network(&through))
        return -2;
    const dealer by = {ints_of(entries),
                       entries->shape[0],
                       samples_each(ints_of(entries), entries->shape[0]),
                       of[5].word,
                       of[6].word,
                       ints_of(&of[7].array),
                       of[7].array.shape[1]};
    const piece_table in = {ints_of(pieces),    pieces->shape[0] - 2, slots_of(&of[9].array),
                            of[9].array.size,   of[10].number,        ints_of(blocks)};
    uint8_t *seen = calloc((size_t)most(1, blocks->size), 1);
    if (seen == NULL)
        return -1;
    int64_t numbers[WALKED], *out = ints_of(found), at = of[13].number, ended = 0;
    for (int64_t batch = 0; batch < ranges->shape[0]; batch++) {
        const int64_t end = least(ints_of(ranges)[2 * batch + 1], count);
        for (int64_t first = most(0, ints_of(ranges)[2 * batch]); first < end; first += WALKED) {
            const int64_t size = least(least(WALKED, end - first), room - at);
            if (is_whole)
                memcpy(numbers, ints_of(whole) + first, (size_t)size * sizeof *numbers);
            else
                walk_range(&through, first, numbers, size);
            deal(&by, numbers, size);
            look_up(&in, numbers, size, seen, out + at, out + room + at, out + 2 * room + at);
            at += size;
        }
        for (int64_t i = 0; i < blocks->size; i++) {
            if (seen[i] && ended < touched->size)
                ints_of(touched)[ended++] = in.blocks[i];
            seen[i] = 0;
        }
        ints_of(&of[15].array)[batch] = ended;
    }
    free(seen);
    return 0;
}

#endif
