/* Measure and write several batches in one call, and write payloads in several parts.
 *
 * Python's lock is released once for all batches, so other threads can run meanwhile.
 */

#ifndef HEADRACE_BATCHES_H
#define HEADRACE_BATCHES_H

#include "gather.h"
#include "hash.h"

#define ALIGNMENT 64   /* of the buffers in a payload, see headrace.payload */
#define OFFSET_BYTES 8 /* see headrace.payload */

/* A ragged column: the offset of the value's span in a packed row; the bytes of an element; its
 * buffer of offsets, which the buffer of its values follows. */
enum { SPAN_AT, ITEM_BYTES, BUFFER, RAGGED };

/* The spans of a ragged column: the start and the bytes of each value, and the edges of all. */
enum { VALUE_STARTS, LENGTHS, EDGES, SPANS };

static inline int64_t *spans_of(const array *spans, int64_t column, int64_t which) {
    return ints_of(spans) + (column * SPANS + which) * spans->shape[2];
}

static rows rows_of(const argument *of) {
    const rows made = {&of[0].array,          &of[1].array,          &of[2].array,
                       ints_of(&of[3].array), ints_of(&of[4].array),
                       least(of[3].array.size, of[4].array.size)};
    return made;
}

static bool are_spans(const array *spans, const array *ragged, int64_t count) {
    return ragged->shape[1] == RAGGED && spans->shape[0] >= ragged->shape[0] &&
           spans->shape[1] == SPANS && (ragged->shape[0] == 0 || spans->shape[2] > count);
}

/* Place buffers one after another, and write their starts. */
static void place_buffers(const int64_t *lengths, int64_t count, int64_t *starts) {
    int64_t end = 0;
    for (int64_t buffer = 0; buffer < count; buffer++) {
        starts[buffer] = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        end = starts[buffer] + lengths[buffer];
    }
}

/* Find the values of ragged columns.
 *
 * 0 arena, 1 slot_of, 2 bases, 3 blocks, 4 offsets: `rows`.
 * 5 row_bytes: The bytes of a packed row.
 * 6 ragged: (ragged columns, 3), as above.
 * 7 spans: (ragged columns, 3, rows + 1): receives the results of `find_values`.
 *
 * Returns the same as `gather`.
 */
static bool find_ragged(const argument *of, const array *spans) {
    const rows given = rows_of(of);
    const array *ragged = &of[6].array;
    if (!are_spans(spans, ragged, given.count))
        return false;
    for (int64_t column = 0; column < ragged->shape[0]; column++)
        if (!find_values(&given, of[5].number, ints_of(ragged)[column * RAGGED + SPAN_AT],
                         spans_of(spans, column, VALUE_STARTS), spans_of(spans, column, LENGTHS),
                         spans_of(spans, column, EDGES)))
            return false;
    return true;
}

/* Lay out batches with equal numbers of rows.
 *
 * 0 arena, 1 slot_of, 2 bases, 3 blocks, 4 offsets: `rows`, of all batches, one after the other.
 * 5 row_bytes: The bytes of a packed row.
 * 6 ragged: (ragged columns, 3), as above.
 * 7 buffers: (buffers, 2): the bytes of each row, and additional bytes; the former are negative
 *   for the values of a ragged column: -1 for the first column, -2 for the next.
 * 8 spans: (ragged columns, 3, rows + 1): receives the results of `find_values`.
 * 9 starts: (batches, buffers): receives the start of each buffer in its payload.
 * 10 lengths: (batches, buffers): receives the bytes of each buffer.
 *
 * Returns the same as `gather`.
 */
static bool measure_batches(const argument *of) {
    const rows given = rows_of(of);
    const array *ragged = &of[6].array, *buffers = &of[7].array, *spans = &of[8].array;
    const int64_t batches = of[9].array.shape[0], width = of[9].array.shape[1];
    const int64_t count = given.count / most(1, batches);
    if (buffers->shape[1] != 2 || buffers->shape[0] != width ||
        of[10].array.size != of[9].array.size || !find_ragged(of, spans))
        return false;
    for (int64_t batch = 0; batch < batches; batch++) {
        int64_t *lengths = ints_of(&of[10].array) + batch * width;
        for (int64_t buffer = 0; buffer < width; buffer++) {
            int64_t length = ints_of(buffers)[2 * buffer + 1];
            if (length < 0) {
                if (-1 - length >= ragged->shape[0])
                    return false;
                const int64_t *edges = spans_of(spans, -1 - length, EDGES);
                length = edges[(batch + 1) * count] - edges[batch * count];
            } else {
                length += count * ints_of(buffers)[2 * buffer];
            }
            lengths[buffer] = length;
        }
        place_buffers(lengths, width, ints_of(&of[9].array) + batch * width);
    }
    return true;
}

/* Write the start of each row and the end of the last, in items of 1, 2, 4 or 8 bytes. */
static void put_offsets(const int64_t *edges, int64_t count, int64_t item_bytes, uint8_t *to) {
    int shift = 0;
    while (shift < 3 && INT64_C(1) << shift < item_bytes)
        shift++;
    int64_t *offsets = (int64_t *)to;
    for (int64_t row = 0; row < count; row++)
        offsets[row] = (edges[row] - edges[0]) >> shift;
}

/* The number and the payload of a batch that is being written. */
typedef struct {
    int64_t number;
    uint8_t *out;
    int64_t size;
    const int64_t *starts;
    const int64_t *lengths;
    int64_t buffers;
} payload;

/* Write zeros between the buffers; return whether these lie in the payload, in order. */
static bool put_padding(const payload *of) {
    int64_t end = 0;
    for (int64_t buffer = 0; buffer < of->buffers; buffer++) {
        const int64_t start = of->starts[buffer], length = of->lengths[buffer];
        if (start < end || length < 0 || length > of->size || start > of->size - length)
            return false;
        memset(of->out + end, 0, (size_t)(start - end));
        end = start + length;
    }
    return true;
}

/* Write the offsets and the values of a ragged column. */
static bool put_ragged(const payload *of, const rows *given, const int64_t *column,
                       const array *spans, int64_t index) {
    const int64_t buffer = column[BUFFER], first = of->number * given->count;
    const int64_t edge_bytes = OFFSET_BYTES * (given->count + 1);
    if (buffer < 0 || buffer + 1 >= of->buffers || of->lengths[buffer] != edge_bytes ||
        (uintptr_t)of->out % OFFSET_BYTES || of->starts[buffer] % OFFSET_BYTES)
        return false;
    put_offsets(spans_of(spans, index, EDGES) + first, given->count + 1, column[ITEM_BYTES],
                of->out + of->starts[buffer]);
    return copy_spans(given->arena, spans_of(spans, index, VALUE_STARTS) + first,
                      spans_of(spans, index, LENGTHS) + first, given->count,
                      of->out + of->starts[buffer + 1], of->lengths[buffer + 1]);
}

/* Gather columns of fixed size; `placed` has room for their descriptions. */
static bool put_fields(const payload *of, const rows *given, const array *fields,
                       int64_t *placed) {
    memcpy(placed, fields->data, (size_t)fields->size * sizeof *placed);
    for (int64_t field = 0; field < fields->shape[0]; field++) {
        const int64_t buffer = placed[field * FIELD + TO];
        if (buffer < 0 || buffer >= of->buffers)
            return false;
        placed[field * FIELD + TO] = of->starts[buffer];
    }
    return gather(given, placed, fields->shape[0], of->out, of->size);
}

/* Write the sample ids; the buffer of each batch holds its part of them. */
static bool put_ids(const payload *of, const array *ids, int64_t buffer) {
    if (buffer < 0)
        return true;
    if (buffer >= of->buffers || (of->number + 1) * of->lengths[buffer] > ids->size)
        return false;
    memcpy(of->out + of->starts[buffer], bytes_of(ids) + of->number * of->lengths[buffer],
           (size_t)of->lengths[buffer]);
    return true;
}

/* The target of a batch: the address of its payload, a multiple of 8 if there are ragged columns;
 * the bytes of the payload, and of the head before it; the address for its hash, 0 for none. */
enum { ADDRESS, PAYLOAD_BYTES, HEAD_BYTES, HASH_TO, TARGET };

/* Return the payload of a batch; `starts` is the argument with the starts of the buffers, and the
 * next one has their lengths. */
static payload payload_of(const argument *of, int starts, int64_t batch, const array *targets) {
    const int64_t *target = ints_of(targets) + batch * TARGET;
    const int64_t width = of[starts].array.shape[1];
    const payload found = {batch,
                           (uint8_t *)(uintptr_t)target[ADDRESS],
                           target[PAYLOAD_BYTES],
                           ints_of(&of[starts].array) + batch * width,
                           ints_of(&of[starts + 1].array) + batch * width,
                           width};
    return found;
}

/* Write the head of a payload, which starts at `*at`; return whether it is complete. */
static bool put_head(const payload *of, const array *heads, const array *targets, int64_t *at) {
    const int64_t bytes = ints_of(targets)[of->number * TARGET + HEAD_BYTES];
    if (bytes < 0 || bytes > heads->size - *at)
        return false;
    memcpy(of->out - bytes, bytes_of(heads) + *at, (size_t)bytes);
    *at += bytes;
    return true;
}

/* Write the hash of a payload to its target. */
static void put_hash(const payload *of, const array *targets) {
    uint8_t *to = (uint8_t *)(uintptr_t)ints_of(targets)[of->number * TARGET + HASH_TO];
    if (to == NULL)
        return;
    const uint64_t found = hash_of(of->out, of->size);
    for (int byte = 0; byte < 8; byte++)
        to[byte] = (uint8_t)(found >> (8 * byte));
}

/* Write the payloads of the batches that were measured last, and their heads.
 *
 * 0 to 4: As for `measure_batches`.
 * 5 fields: As for `gather`, except that the last number of each is its buffer.
 * 6 ragged, 7 spans, 8 starts, 9 lengths: As for `measure_batches`.
 * 10 ids: The column of sample ids of all rows.
 * 11 id_buffer: The buffer of that column; negative without it.
 * 12 heads: The heads of all payloads, one after the other.
 * 13 targets: (batches, 4), as above.
 *
 * Returns the same as `gather`, and false if there is not enough memory.
 */
static bool write_batches(const argument *of) {
    const rows all = rows_of(of);
    const array *fields = &of[5].array, *ragged = &of[6].array, *spans = &of[7].array;
    const array *starts = &of[8].array, *heads = &of[12].array, *targets = &of[13].array;
    const int64_t batches = targets->shape[0], count = all.count / most(1, batches);
    if (fields->shape[1] != FIELD || targets->shape[1] != TARGET ||
        !are_spans(spans, ragged, all.count) || starts->shape[0] != batches ||
        of[9].array.size != starts->size)
        return false;
    int64_t *placed = malloc((size_t)most(1, fields->size) * sizeof *placed);
    if (placed == NULL)
        return false;
    int64_t head_at = 0;
    bool is_right = true;
    for (int64_t batch = 0; batch < batches && is_right; batch++) {
        const int64_t first = batch * count;
        const rows own = {all.arena,          all.slot_of,         all.bases,
                          all.blocks + first, all.offsets + first, count};
        const payload to = payload_of(of, 8, batch, targets);
        is_right = put_head(&to, heads, targets, &head_at) && put_padding(&to) &&
                   put_fields(&to, &own, fields, placed) &&
                   put_ids(&to, &of[10].array, of[11].number);
        for (int64_t column = 0; column < ragged->shape[0] && is_right; column++)
            is_right = put_ragged(&to, &own, ints_of(ragged) + column * RAGGED, spans, column);
        if (is_right)
            put_hash(&to, targets);
    }
    free(placed);
    return is_right;
}

/* A payload in several parts: the address of each; the bytes of each part but the last, a multiple
 * of a hash block; the bytes of the payload; the sums of the blocks hashed so far, and their
 * bytes. */
typedef struct {
    const array *parts;
    int64_t part_bytes;
    int64_t size;
    uint64_t *sums;
    int64_t *hashed;
} parts_out;

static bool are_parts(const parts_out *to, const array *sums, const array *hashed) {
    return to->part_bytes > 0 && to->part_bytes % BLOCK_BYTES == 0 && to->size >= 0 &&
           to->parts->size * to->part_bytes >= to->size && sums->size >= LANES && hashed->size >= 1;
}

/* Hash whole blocks up to `end`, but not the last block of the payload. */
static void hash_parts(const parts_out *to, int64_t end) {
    const int64_t last = least(end, (to->size - 1) / BLOCK_BYTES * BLOCK_BYTES);
    while (*to->hashed + BLOCK_BYTES <= last) {
        const int64_t part = *to->hashed / to->part_bytes;
        const int64_t start = *to->hashed - part * to->part_bytes;
        const int64_t here = least(last - part * to->part_bytes, to->part_bytes) - start;
        const uint8_t *from = (const uint8_t *)(uintptr_t)ints_of(to->parts)[part];
        add_blocks(from + start, here / BLOCK_BYTES, to->sums);
        *to->hashed += here / BLOCK_BYTES * BLOCK_BYTES;
    }
}

/* Bytes are hashed soon after they are written, while the first caches hold them. Hashing whole
 * parts of 2 MiB reads them from the last cache, which took 1.4 ms for 16 MiB of 64 KiB each. */
#define NEAR_BYTES (64 << 10)

/* Fill [at, end) of a payload with spans of bytes, back to back, and hash it.
 *
 * Returns whether all spans lie in the memory and fill exactly this range.
 */
static bool copy_spans_to_parts(const array *memory, const int64_t *starts, const int64_t *lengths,
                                int64_t count, const parts_out *to, int64_t at, int64_t end) {
    if (at < 0)
        return false;
    for (int64_t first = 0; first < count; first += TILE) {
        const int64_t last = first + least(TILE, count - first);
        if (!fetch_spans(memory, starts + first, lengths + first, last - first))
            return false;
        for (int64_t i = first; i < last; i++) {
            int64_t start = starts[i], left = lengths[i];
            if (left > least(end, to->size) - at)
                return false;
            while (left > 0) {
                const int64_t part = at / to->part_bytes, into = at - part * to->part_bytes;
                const int64_t here = least(least(left, to->part_bytes - into), NEAR_BYTES);
                uint8_t *target = (uint8_t *)(uintptr_t)ints_of(to->parts)[part];
                memcpy(target + into, bytes_of(memory) + start, (size_t)here);
                start += here;
                left -= here;
                at += here;
                if (at - *to->hashed >= NEAR_BYTES)
                    hash_parts(to, at);
            }
        }
    }
    return at == end;
}

#endif
