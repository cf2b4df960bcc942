/* Find the blocks of samples, and pin cached blocks while they are read. */

#ifndef HEADRACE_BLOCKS_H
#define HEADRACE_BLOCKS_H

#include "arrays.h"

enum { SMALLEST_PAGE = 4096 };

/* Find the distinct blocks of each of several batches, ascending.
 *
 * `blocks` has the blocks of all batches, one batch after the other, and `ends` the end of each
 * batch in it; `widest` is the greatest range of blocks for which a table pays off. `out`, as long
 * as `blocks`, receives the distinct blocks, and `out_ends` the end of each batch in it.
 *
 * Returns false, without a result, if the range is greater or there is not enough memory.
 */
static bool distinct(const array *blocks, const array *ends, int64_t widest, const array *out,
                     const array *out_ends) {
    const int64_t *of = ints_of(blocks), count = blocks->size;
    int64_t *into = ints_of(out);
    if (out->size < count || out_ends->size < ends->size)
        return false;
    if (!count) {
        memset(out_ends->data, 0, (size_t)out_ends->size * sizeof(int64_t));
        return true;
    }
    int64_t first = of[0], last = of[0];
    for (int64_t i = 1; i < count; i++) {
        first = least(first, of[i]);
        last = most(last, of[i]);
    }
    if (last - first >= widest)
        return false;
    uint8_t *seen = calloc((size_t)(last - first + 1), 1);
    if (seen == NULL)
        return false;
    int64_t start = 0, at = 0;
    for (int64_t batch = 0; batch < ends->size; batch++) {
        const int64_t end = least(ints_of(ends)[batch], count);
        int64_t low = last - first, high = 0;
        for (int64_t i = start; i < end; i++) {
            const int64_t place = of[i] - first;
            seen[place] = 1;
            low = least(low, place);
            high = most(high, place);
        }
        for (int64_t place = low; place <= high; place++) {
            if (seen[place]) {
                into[at++] = place + first;
                seen[place] = 0;
            }
        }
        start = most(start, end);
        ints_of(out_ends)[batch] = at;
    }
    free(seen);
    return true;
}

/* Do the same as headrace.storage.search_starts; false if the tables do not fit together. */
static bool find_spans(const array *starts, const array *buckets, int64_t shift,
                       const array *ordinals, const array *spans, const array *offsets) {
    const int64_t *of = ints_of(starts), last = starts->size - 2;
    if (last < 0 || buckets->size < 1 || spans->size < ordinals->size ||
        offsets->size < ordinals->size)
        return false;
    for (int64_t i = 0; i < ordinals->size; i++) {
        const int64_t ordinal = ints_of(ordinals)[i];
        const int64_t place = least(most((ordinal - of[0]) >> shift, 0), buckets->size - 1);
        int64_t span = least(halves_of(buckets)[place], last);
        while (span < last && of[span + 1] <= ordinal)
            span++;
        ints_of(spans)[i] = span;
        ints_of(offsets)[i] = ordinal - of[span];
    }
    return true;
}

/* Count one more reader of each slot, and record the time. */
static void pin(const array *pins, const array *last_use, const array *slots, int64_t now) {
    const int64_t count = least(pins->size, last_use->size);
    for (int64_t i = 0; i < slots->size; i++) {
        const int32_t slot = slots_of(slots)[i];
        if (slot >= 0 && slot < count) {
            slots_of(pins)[slot]++;
            ints_of(last_use)[slot] = now;
        }
    }
}

/* Count one reader fewer of each slot. */
static void unpin(const array *pins, const array *slots) {
    for (int64_t i = 0; i < slots->size; i++) {
        const int32_t slot = slots_of(slots)[i];
        if (slot >= 0 && slot < pins->size)
            slots_of(pins)[slot]--;
    }
}

/* Find the slots of blocks, and pin them if all are cached; return how many are cached. */
static int64_t pin_all(const array *slot_of, const array *blocks, const array *pins,
                       const array *last_use, int64_t now, const array *slots) {
    const int64_t count = least(blocks->size, slots->size);
    int64_t hits = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t block = ints_of(blocks)[i];
        const int32_t slot = block >= 0 && block < slot_of->size ? slots_of(slot_of)[block] : 0;
        slots_of(slots)[i] = slot;
        hits += slot > 0 && slot < pins->size;
    }
    if (hits == blocks->size)
        pin(pins, last_use, slots, now);
    return hits;
}

/* Record that blocks will be read, if all are cached; return whether they are. */
static bool ask(const array *slot_of, const array *blocks, const array *asked, int64_t ranking) {
    for (int64_t i = 0; i < blocks->size; i++) {
        const int64_t block = ints_of(blocks)[i];
        if (block < 0 || block >= slot_of->size)
            return false;
        const int32_t slot = slots_of(slot_of)[block];
        if (slot <= 0 || slot >= asked->size)
            return false;
    }
    for (int64_t i = 0; i < blocks->size; i++) {
        const int32_t slot = slots_of(slot_of)[ints_of(blocks)[i]];
        /* It may have been evicted meanwhile. */
        if (slot > 0 && slot < asked->size)
            ints_of(asked)[slot] = ranking;
    }
    return true;
}

/* The tables of several datasets, whose blocks are numbered dataset after dataset. */
typedef struct {
    const int64_t *places; /* for each: the addresses of its slots and bases, parts, slots */
    const int64_t *firsts; /* the first number of each, and the end of the last */
    int64_t count;
} joined;

enum { SLOTS_PLACE, BASES_PLACE, PART_COUNT, SLOT_COUNT, PLACES };

static bool is_joined(const array *places, const array *firsts, joined *found) {
    *found = (joined){ints_of(places), ints_of(firsts), places->shape[0]};
    if (places->shape[1] != PLACES || firsts->size != found->count + 1 || found->firsts[0] != 0)
        return false;
    for (int64_t i = 0; i < found->count; i++)
        if (found->firsts[i + 1] < found->firsts[i])
            return false;
    return true;
}

/* Return the dataset of a block, trying that of the previous block first; -1 for none. */
static int64_t owner_of(const joined *all, int64_t block, int64_t last) {
    const int64_t *firsts = all->firsts;
    if (firsts[last] <= block && block < firsts[last + 1])
        return last;
    int64_t low = 0, high = all->count;
    if (block < 0 || block >= firsts[high])
        return -1;
    /* firsts[low] <= block < firsts[high], even if some datasets between are empty. */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (firsts[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Find the slots of blocks; false if a block belongs to no dataset. */
static bool find_slots(const joined *all, const array *blocks, const array *slots) {
    if (slots->size < blocks->size || (blocks->size && !all->count))
        return false;
    for (int64_t i = 0, owner = 0; i < blocks->size; i++) {
        const int64_t block = ints_of(blocks)[i];
        owner = owner_of(all, block, owner);
        if (owner < 0)
            return false;
        const int32_t *slot_of = (const int32_t *)all->places[owner * PLACES + SLOTS_PLACE];
        slots_of(slots)[i] = slot_of[block - all->firsts[owner]];
    }
    return true;
}

/* Find the base of each part of blocks, (parts, blocks); false if a block is not cached. */
static bool find_bases(const joined *all, const array *blocks, const array *bases) {
    const int64_t count = blocks->size;
    if (bases->shape[1] != count || (count && !all->count))
        return false;
    for (int64_t i = 0, owner = 0; i < count; i++) {
        const int64_t block = ints_of(blocks)[i];
        owner = owner_of(all, block, owner);
        if (owner < 0)
            return false;
        const int64_t *places = all->places + owner * PLACES;
        const int32_t slot = ((const int32_t *)places[SLOTS_PLACE])[block - all->firsts[owner]];
        if (slot <= 0 || slot >= places[SLOT_COUNT] || bases->shape[0] > places[PART_COUNT])
            return false;
        const int64_t *of = (const int64_t *)places[BASES_PLACE];
        for (int64_t part = 0; part < bases->shape[0]; part++)
            ints_of(bases)[part * count + i] = of[part * places[SLOT_COUNT] + slot];
    }
    return true;
}

/* Write to each page of memory, without changing it or what other threads write there meanwhile.
 *
 * A page that was never written is all zeros, so zero is replaced by zero, atomically.
 */
static void touch(const array *memory) {
    volatile uint8_t *of = bytes_to(memory);
    for (int64_t at = 0; at < memory->size; at += SMALLEST_PAGE) {
        uint8_t zero = 0;
        __atomic_compare_exchange_n(of + at, &zero, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

#endif
