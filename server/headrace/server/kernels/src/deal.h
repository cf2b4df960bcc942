/* Deal samples to ranks with even costs. */

#ifndef HEADRACE_DEAL_H
#define HEADRACE_DEAL_H

#include "arrays.h"

static inline bool is_before(const double *times, int64_t one, int64_t other) {
    return times[one] < times[other] || (times[one] == times[other] && one < other);
}

/* Move a part down in a heap to its place. */
static void sink(int64_t *heap, int64_t size, int64_t at, const double *times) {
    const int64_t part = heap[at];
    for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size && is_before(times, heap[child + 1], heap[child]))
            child++;
        if (!is_before(times, heap[child], part))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = part;
}

/* The arguments of headrace.order.deal_evenly, and the state of its loop. */
typedef struct {
    const int64_t *falling; /* the samples of each slice by falling cost, slice after slice */
    const double *costs;
    const int64_t *part_edges;
    double *loads;
    const double *pace;
    int64_t *owners; /* receives the part of each sample */
    int64_t parts;
    double *times;  /* of each part, as the following arrays */
    int64_t *heap;  /* parts with room, the one that is ready first on top */
    int64_t *rooms;
} deal_table;

/* Deal the slice [low, high); return false if its parts have no room for all of it. */
static bool deal_slice(const deal_table *of, int64_t low, int64_t high) {
    int64_t size = 0;
    for (int64_t part = 0; part < of->parts; part++) {
        const int64_t start = most(of->part_edges[part], low);
        const int64_t end = least(of->part_edges[part + 1], high);
        of->rooms[part] = most(0, end - start);
        if (of->rooms[part])
            of->heap[size++] = part;
    }
    for (int64_t at = size / 2 - 1; at >= 0; at--)
        sink(of->heap, size, at, of->times);
    for (int64_t i = low; i < high; i++) {
        if (!size)
            return false;
        const int64_t sample = of->falling[i], part = of->heap[0];
        of->owners[sample] = part;
        of->loads[part] += of->costs[sample];
        of->times[part] = of->loads[part] * of->pace[part];
        if (!--of->rooms[part])
            of->heap[0] = of->heap[--size];
        if (size)
            sink(of->heap, size, 0, of->times);
    }
    return true;
}

/* Do the same as headrace.order.deal_evenly; `falling` is an additional first argument.
 *
 * Returns 0; -1 without enough memory, -2 if the arrays do not fit together.
 */
static int deal_evenly(const argument *of) {
    const array *falling = &of[0].array, *costs = &of[1].array, *edges = &of[2].array;
    const int64_t parts = of[4].array.size, count = costs->size;
    if (falling->size != count || of[6].array.size != count || of[5].array.size != parts ||
        of[3].array.size != parts + 1)
        return -2;
    for (int64_t i = 0; i < count; i++)
        if (ints_of(falling)[i] < 0 || ints_of(falling)[i] >= count)
            return -2;
    double *times = malloc((size_t)(parts + 1) * sizeof *times);
    int64_t *heap = malloc((size_t)(parts + 1) * sizeof *heap);
    int64_t *rooms = malloc((size_t)(parts + 1) * sizeof *rooms);
    int found = times != NULL && heap != NULL && rooms != NULL ? 0 : -1;
    const deal_table table = {ints_of(falling),     doubles_of(costs), ints_of(&of[3].array),
                              doubles_of(&of[4].array), doubles_of(&of[5].array),
                              ints_of(&of[6].array), parts, times, heap, rooms};
    for (int64_t part = 0; part < parts && !found; part++)
        times[part] = table.loads[part] * table.pace[part];
    for (int64_t slice = 0; slice + 1 < edges->size && !found; slice++) {
        const int64_t low = ints_of(edges)[slice], high = ints_of(edges)[slice + 1];
        if (low < 0 || high > count)
            found = -2;
        else if (!deal_slice(&table, low, high))
            break;
    }
    free(times);
    free(heap);
    free(rooms);
    return found;
}

#endif
