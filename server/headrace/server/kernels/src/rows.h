/* Write packed rows: pieces of documents, filling, and the columns derived from their places. */

#ifndef HEADRACE_ROWS_H
#define HEADRACE_ROWS_H

#include "batches.h"

#define PIECES_AHEAD 4 /* prefetched while one is copied (arbitrary) */
#define IGNORED_LABEL (-100)

/* A piece of a document, as in headrace.order.packing.Pieces: its start in the document; its
 * elements; those of the document, including marks; its place in the row. */
enum { IN_DOCUMENT, ELEMENTS, OF_DOCUMENT, IN_ROW, PIECE_NUMBERS };

/* A packed column: the bytes of an element; whether it is signed; the marks before and after each
 * document, -1 for none; the filling of rows. */
enum { ELEMENT_BYTES, IS_SIGNED, BOS, EOS, FILL, SOURCE };

/* The content of a buffer, and its source; the numbers are those of compiled_rows.py. */
enum {
    IDS,
    ELEMENTS_OF_SOURCE,
    LABELS,
    POSITIONS,
    DOCUMENTS,
    BOUNDARY_OFFSETS,
    BOUNDARIES,
    SAMPLE_OFFSETS,
    SAMPLES
};
enum { KIND, OF_SOURCE, MADE };

/* Rows of equal length, and their pieces, row after row. */
typedef struct {
    const int64_t *counts; /* pieces of each row */
    int64_t rows;
    const int64_t *pieces;
    int64_t piece_count;
    int64_t length;
} packed_rows;

/* A segment of a row: a piece, or filling. */
typedef struct {
    int64_t start;
    int64_t size;
    int64_t piece; /* -1 for filling */
} segment;

typedef struct {
    const packed_rows *of;
    int64_t next; /* piece */
    int64_t stop;
    int64_t at;
} row_walk;

static inline const int64_t *piece_of(const packed_rows *of, int64_t piece) {
    return of->pieces + piece * PIECE_NUMBERS;
}

static inline bool next_segment(row_walk *walk, segment *found) {
    if (walk->at == walk->of->length)
        return false;
    const bool is_last = walk->next == walk->stop;
    const int64_t *piece = piece_of(walk->of, walk->next);
    const int64_t end = is_last ? walk->of->length : piece[IN_ROW];
    found->start = walk->at;
    if (is_last || end > walk->at) {
        found->piece = -1;
        found->size = end - walk->at;
    } else {
        found->piece = walk->next++;
        found->size = piece[ELEMENTS];
    }
    walk->at += found->size;
    return true;
}

static bool is_in_document(const int64_t *piece) {
    return piece[ELEMENTS] >= 1 && piece[IN_DOCUMENT] >= 0 && piece[OF_DOCUMENT] <= INT32_MAX &&
           piece[IN_DOCUMENT] <= piece[OF_DOCUMENT] - piece[ELEMENTS];
}

/* Return whether pieces lie in their row, in order, and in their documents. */
static bool are_pieces(const packed_rows *of, int64_t first, int64_t stop) {
    int64_t end = 0;
    for (int64_t i = first; i < stop; i++) {
        const int64_t *piece = piece_of(of, i);
        if (!is_in_document(piece) || piece[IN_ROW] < end || piece[IN_ROW] > of->length ||
            piece[ELEMENTS] > of->length - piece[IN_ROW])
            return false;
        end = piece[IN_ROW] + piece[ELEMENTS];
    }
    return true;
}

/* Return the number of segments of rows, and advance `*piece` from their first piece to the end of
 * their last; -1 if the pieces are wrong. */
static int64_t count_segments(const packed_rows *of, int64_t first, int64_t stop, int64_t *piece) {
    int64_t segments = 0;
    for (int64_t row = first; row < stop; row++) {
        const int64_t count = of->counts[row];
        if (count < 0 || count > of->piece_count - *piece ||
            !are_pieces(of, *piece, *piece + count))
            return -1;
        row_walk walk = {of, *piece, *piece + count, 0};
        for (segment found; next_segment(&walk, &found);)
            segments++;
        *piece += count;
    }
    return segments;
}

static packed_rows packed_rows_of(const argument *of) {
    const packed_rows made = {ints_of(&of[0].array), of[0].array.size, ints_of(&of[1].array),
                              of[1].array.shape[0], of[2].number};
    return made;
}

/* Return whether the first arguments of all functions fit together. */
static bool are_row_tables(const argument *of) {
    const array *spans = &of[3].array, *sources = &of[4].array;
    if (of[1].array.shape[1] != PIECE_NUMBERS || of[2].number < 1 || of[2].number > INT32_MAX ||
        spans->shape[1] != SPANS || spans->shape[2] <= of[1].array.shape[0] ||
        sources->shape[1] != SOURCE || sources->shape[0] < 1 ||
        sources->shape[0] != spans->shape[0])
        return false;
    for (int64_t source = 0; source < sources->shape[0]; source++) {
        const int64_t bytes = ints_of(sources)[source * SOURCE + ELEMENT_BYTES];
        if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
            return false;
    }
    return true;
}

/* Lay out batches with equal numbers of rows.
 *
 * 0 counts: (rows,): the number of pieces of each row.
 * 1 pieces: (pieces, 4), as above.
 * 2 length: The elements of a row.
 * 3 spans: (sources, 3, pieces + 1): the documents of the pieces, from `find_values`.
 * 4 sources: (sources, 5), as above; the column of documents first.
 * 5 marks: The number of elements added around each document.
 * 6 buffers: (buffers, 3): the bytes of each row and of each segment, and additional bytes.
 * 7 starts: (batches, buffers): receives the start of each buffer in its payload.
 * 8 lengths: (batches, buffers): receives the bytes of each buffer.
 *
 * Returns whether the pieces lie in their rows, and the documents have the lengths in the pieces.
 */
static bool measure_rows(const argument *of) {
    const packed_rows given = packed_rows_of(of);
    const array *spans = &of[3].array, *buffers = &of[6].array;
    const int64_t batches = of[7].array.shape[0], width = of[7].array.shape[1];
    const int64_t count = given.rows / most(1, batches);
    if (!are_row_tables(of) || buffers->shape[0] != width || buffers->shape[1] != 3 ||
        of[8].array.size != of[7].array.size)
        return false;
    int64_t piece = 0;
    for (int64_t batch = 0; batch < batches; batch++) {
        const int64_t segments =
            count_segments(&given, batch * count, (batch + 1) * count, &piece);
        if (segments < 0)
            return false;
        int64_t *lengths = ints_of(&of[8].array) + batch * width;
        for (int64_t buffer = 0; buffer < width; buffer++) {
            const int64_t *bytes = ints_of(buffers) + 3 * buffer;
            lengths[buffer] = count * bytes[0] + segments * bytes[1] + bytes[2];
        }
        place_buffers(lengths, width, ints_of(&of[7].array) + batch * width);
    }
    for (int64_t source = 0; source < spans->shape[0]; source++) {
        const int64_t bytes = ints_of(&of[4].array)[source * SOURCE + ELEMENT_BYTES];
        const int64_t *found = spans_of(spans, source, LENGTHS);
        for (int64_t i = 0; i < piece; i++)
            if (found[i] != (piece_of(&given, i)[OF_DOCUMENT] - of[5].number) * bytes)
                return false;
    }
    return piece == given.piece_count;
}

/* ---- Rows of one source ---- */

typedef struct {
    const array *memory;
    const int64_t *starts; /* where the document of each piece starts, in bytes */
    const int64_t *lengths;
    const int64_t *source;
} packed_source;

/* The part of a document to copy: its start in the memory, its bytes, and whether marks precede and
 * follow it; `size` is -1 if it does not lie in the memory. */
typedef struct {
    int64_t start;
    int64_t size;
    bool has_bos;
    bool has_eos;
} copied;

static inline copied copied_of(const packed_source *from, const packed_rows *of, int64_t i) {
    const int64_t *piece = piece_of(of, i), bytes = from->source[ELEMENT_BYTES];
    const bool marks_start = from->source[BOS] >= 0, marks_end = from->source[EOS] >= 0;
    copied found = {from->starts[i], -1, marks_start && piece[IN_DOCUMENT] == 0,
                    marks_end && piece[IN_DOCUMENT] + piece[ELEMENTS] == piece[OF_DOCUMENT]};
    const int64_t first = piece[IN_DOCUMENT] - (marks_start && !found.has_bos);
    const int64_t size = piece[ELEMENTS] - found.has_bos - found.has_eos;
    const int64_t length = from->lengths[i];
    if (size < 0 || length < 0 || (first + size) * bytes > length || found.start < 0 ||
        found.start > from->memory->size - length)
        return found;
    found.start += first * bytes;
    found.size = size * bytes;
    return found;
}

static void put_items(uint8_t *to, int64_t value, int64_t count, int64_t item_bytes) {
    if (value == 0) {
        memset(to, 0, (size_t)(count * item_bytes));
        return;
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t byte = 0; byte < item_bytes; byte++)
            to[i * item_bytes + byte] = (uint8_t)((uint64_t)value >> (8 * byte));
}

/* Write the elements of a row; return whether its documents lie in the memory. */
static bool put_elements(const packed_source *from, row_walk walk, uint8_t *to) {
    const packed_rows *of = walk.of;
    const int64_t bytes = from->source[ELEMENT_BYTES];
    for (segment found; next_segment(&walk, &found);) {
        uint8_t *at = to + found.start * bytes;
        if (found.piece < 0) {
            put_items(at, from->source[FILL], found.size, bytes);
            continue;
        }
        if (found.piece + PIECES_AHEAD < of->piece_count) {
            const copied later = copied_of(from, of, found.piece + PIECES_AHEAD);
            fetch_all(bytes_of(from->memory), most(0, later.start), most(0, later.size));
        }
        const copied own = copied_of(from, of, found.piece);
        if (own.size < 0)
            return false;
        if (own.has_bos) {
            put_items(at, from->source[BOS], 1, bytes);
            at += bytes;
        }
        memcpy(at, bytes_of(from->memory) + own.start, (size_t)own.size);
        if (own.has_eos)
            put_items(at + own.size, from->source[EOS], 1, bytes);
    }
    return true;
}

/* ---- Labels ---- */

/* Return 0 if an int32 can hold all of these elements. Documents have any alignment. */
#define TOO_LARGE(type, beyond)                                                                    \
    do {                                                                                           \
        for (int64_t i = 0; i < size; i++) {                                                       \
            type value;                                                                            \
            memcpy(&value, at + i * (int64_t)sizeof value, sizeof value);                          \
            found |= (beyond);                                                                     \
        }                                                                                          \
    } while (0)

static uint64_t too_large(const uint8_t *at, int64_t size, int64_t item_bytes, bool is_signed) {
    uint64_t found = 0;
    switch (2 * item_bytes + is_signed) {
    case 8: TOO_LARGE(uint32_t, value >> 31); break;
    case 16: TOO_LARGE(uint64_t, value >> 31); break;
    case 17: TOO_LARGE(uint64_t, (value + ((uint64_t)1 << 31)) >> 32); break;
    default: break;
    }
    return found;
}

/* Check the elements that become labels: all but the first of each piece.
 *
 * 0 to 4: As for `measure_rows`.
 * 5 memory: The memory of the spans.
 *
 * Returns whether an int32 can hold each, and the documents lie in the memory.
 */
static bool fit_labels(const argument *of) {
    if (!are_row_tables(of))
        return false;
    const packed_rows rows = packed_rows_of(of);
    const packed_source from = {&of[5].array, spans_of(&of[3].array, 0, VALUE_STARTS),
                                spans_of(&of[3].array, 0, LENGTHS), ints_of(&of[4].array)};
    const int64_t bytes = from.source[ELEMENT_BYTES];
    for (int64_t i = 0; i < rows.piece_count; i++) {
        if (!is_in_document(piece_of(&rows, i)))
            return false;
        const copied own = copied_of(&from, &rows, i);
        const int64_t first = own.has_bos ? 0 : bytes;
        if (own.size < 0 || (own.has_eos && piece_of(&rows, i)[ELEMENTS] > 1 &&
                             from.source[EOS] > INT32_MAX))
            return false;
        if (own.size > first &&
            too_large(bytes_of(from.memory) + own.start + first, (own.size - first) / bytes, bytes,
                      from.source[IS_SIGNED]))
            return false;
    }
    return true;
}

/* ---- Columns derived from the places of documents ---- */

#define COPY_NEXT(type)                                                                            \
    for (int64_t i = 0; i + 1 < size; i++)                                                         \
    labels[i] = (int32_t)((const type *)elements)[i + 1]

/* Write the next element for each element of a segment, and the ignored label for the last. */
static void put_next(const void *elements, int64_t item_bytes, bool is_signed, int64_t size,
                     int32_t *labels) {
    switch (2 * item_bytes + is_signed) {
    case 2: COPY_NEXT(uint8_t); break;
    case 3: COPY_NEXT(int8_t); break;
    case 4: COPY_NEXT(uint16_t); break;
    case 5: COPY_NEXT(int16_t); break;
    case 8:
    case 9: COPY_NEXT(int32_t); break;
    default: COPY_NEXT(int64_t); break;
    }
    labels[size - 1] = IGNORED_LABEL;
}

static void put_each(int32_t *to, int64_t count, int32_t value) {
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

static void put_labels(const uint8_t *row, const int64_t *source, row_walk walk, int32_t *to) {
    const int64_t bytes = source[ELEMENT_BYTES];
    for (segment found; next_segment(&walk, &found);) {
        if (found.piece < 0)
            put_each(to + found.start, found.size, IGNORED_LABEL);
        else
            put_next(row + found.start * bytes, bytes, source[IS_SIGNED], found.size,
                     to + found.start);
    }
}

static void put_positions(row_walk walk, int32_t *to) {
    for (segment found; next_segment(&walk, &found);)
        for (int64_t i = 0; i < found.size; i++)
            to[found.start + i] = (int32_t)i;
}

static void put_documents(row_walk walk, int32_t *to) {
    segment found;
    for (int32_t number = 0; next_segment(&walk, &found); number++)
        put_each(to + found.start, found.size, found.piece < 0 ? -1 : number);
}

static void put_boundaries(row_walk walk, int32_t *to) {
    *to++ = 0;
    for (segment found; next_segment(&walk, &found);)
        *to++ = (int32_t)(found.start + found.size);
}

static void put_samples(row_walk walk, const int64_t *sample_ids, int64_t *to) {
    for (segment found; next_segment(&walk, &found);)
        *to++ = found.piece < 0 ? -1 : sample_ids[found.piece];
}

/* ---- Batches ---- */

/* A batch of rows that is being written. */
typedef struct {
    payload to;
    packed_rows rows; /* the rows of all batches */
    int64_t first;    /* the first row */
    int64_t count;    /* the number of rows */
    int64_t piece;    /* the first piece */
    int64_t segments;
    const array *memory;
    const array *spans;
    const array *sources;
    const int64_t *sample_ids;
    const array *ids;
    const int64_t *made; /* the content of each buffer */
    int64_t main;        /* the buffer with the elements of the first source, or -1 */
    uint8_t *scratch;    /* memory for a row of these elements if there is no such buffer */
} row_batch;

/* Return the bytes of a buffer's content; -1 for an unknown kind. */
static int64_t made_bytes(const row_batch *of, const int64_t *made) {
    const int64_t cells = of->count * of->rows.length;
    switch (made[KIND]) {
    case IDS: return of->ids->size / most(1, of->rows.rows) * of->count;
    case ELEMENTS_OF_SOURCE:
        return made[OF_SOURCE] < 0 || made[OF_SOURCE] >= of->sources->shape[0]
                   ? -1
                   : cells * ints_of(of->sources)[made[OF_SOURCE] * SOURCE + ELEMENT_BYTES];
    case LABELS:
    case POSITIONS:
    case DOCUMENTS: return cells * 4;
    case BOUNDARY_OFFSETS:
    case SAMPLE_OFFSETS: return (of->count + 1) * OFFSET_BYTES;
    case BOUNDARIES: return (of->segments + of->count) * 4;
    case SAMPLES: return of->segments * 8;
    default: return -1;
    }
}

/* Return whether all buffers have the sizes of their contents, and are aligned. */
static bool are_made(const row_batch *of) {
    /* A batch without rows has no bytes, which lie anywhere. */
    if (of->to.size > 0 && (uintptr_t)of->to.out % OFFSET_BYTES)
        return false;
    for (int64_t buffer = 0; buffer < of->to.buffers; buffer++)
        if (of->to.lengths[buffer] != made_bytes(of, of->made + buffer * MADE) ||
            of->to.starts[buffer] % OFFSET_BYTES)
            return false;
    return true;
}

static packed_source source_of(const row_batch *of, int64_t source) {
    const packed_source found = {of->memory, spans_of(of->spans, source, VALUE_STARTS),
                                 spans_of(of->spans, source, LENGTHS),
                                 ints_of(of->sources) + source * SOURCE};
    return found;
}

/* A row that is being written: its number in the batch, its segments, its elements of the first
 * source, and the number of the batch's segments before it and up to its end. */
typedef struct {
    int64_t number;
    row_walk walk;
    const uint8_t *elements;
    int64_t before;
    int64_t end;
} row_place;

/* Write a row of a buffer; return whether its documents lie in the memory. */
static bool put_row(const row_batch *of, int64_t buffer, const row_place *row) {
    const int64_t *made = of->made + buffer * MADE;
    const int64_t cells = row->number * of->rows.length;
    uint8_t *out = of->to.out + of->to.starts[buffer];
    const packed_source from = source_of(of, made[OF_SOURCE]);
    switch (made[KIND]) {
    case ELEMENTS_OF_SOURCE:
        out += cells * from.source[ELEMENT_BYTES];
        return out == row->elements || put_elements(&from, row->walk, out);
    case LABELS: put_labels(row->elements, from.source, row->walk, (int32_t *)out + cells); break;
    case POSITIONS: put_positions(row->walk, (int32_t *)out + cells); break;
    case DOCUMENTS: put_documents(row->walk, (int32_t *)out + cells); break;
    case BOUNDARY_OFFSETS: ((int64_t *)out)[row->number + 1] = row->end + row->number + 1; break;
    case BOUNDARIES: put_boundaries(row->walk, (int32_t *)out + row->before + row->number); break;
    case SAMPLE_OFFSETS: ((int64_t *)out)[row->number + 1] = row->end; break;
    case SAMPLES: put_samples(row->walk, of->sample_ids, (int64_t *)out + row->before); break;
    default: break;
    }
    return true;
}

/* Write the first offsets of buffers, and the ids of the batch. */
static void put_first(const row_batch *of) {
    for (int64_t buffer = 0; buffer < of->to.buffers; buffer++) {
        uint8_t *out = of->to.out + of->to.starts[buffer];
        const int64_t kind = of->made[buffer * MADE + KIND], bytes = of->to.lengths[buffer];
        if (kind == IDS)
            memcpy(out, bytes_of(of->ids) + of->to.number * bytes, (size_t)bytes);
        else if (kind == BOUNDARY_OFFSETS || kind == SAMPLE_OFFSETS)
            memset(out, 0, OFFSET_BYTES);
    }
}

/* Return the place for a row's elements of the first source, from which labels are made. */
static uint8_t *main_place(const row_batch *of, int64_t row) {
    if (of->main < 0)
        return of->scratch;
    const int64_t row_bytes = of->rows.length * ints_of(of->sources)[ELEMENT_BYTES];
    return of->to.out + of->to.starts[of->main] + row * row_bytes;
}

/* Write the rows of a batch; return whether their documents lie in the memory. */
static bool put_rows(const row_batch *of) {
    const packed_source main = source_of(of, 0);
    int64_t piece = of->piece, before = 0;
    put_first(of);
    for (int64_t row = 0; row < of->count; row++) {
        const int64_t stop = piece + of->rows.counts[of->first + row];
        row_place place = {row, {&of->rows, piece, stop, 0}, main_place(of, row), before, before};
        row_walk walk = place.walk;
        for (segment found; next_segment(&walk, &found);)
            place.end++;
        /* Before the columns derived from them, in any order of columns. */
        if (place.elements != NULL &&
            !put_elements(&main, place.walk, main_place(of, row)))
            return false;
        for (int64_t buffer = 0; buffer < of->to.buffers; buffer++)
            if (!put_row(of, buffer, &place))
                return false;
        piece = stop;
        before = place.end;
    }
    return true;
}

static bool has_labels(const array *made) {
    for (int64_t buffer = 0; buffer < made->shape[0]; buffer++)
        if (ints_of(made)[buffer * MADE + KIND] == LABELS)
            return true;
    return false;
}

/* Return the buffer with the elements of the first source, or -1. */
static int64_t main_buffer(const array *made) {
    for (int64_t buffer = 0; buffer < made->shape[0]; buffer++) {
        const int64_t *own = ints_of(made) + buffer * MADE;
        if (own[KIND] == ELEMENTS_OF_SOURCE && own[OF_SOURCE] == 0)
            return buffer;
    }
    return -1;
}

static bool are_buffers(const argument *of) {
    const array *made = &of[7].array, *starts = &of[8].array;
    if (made->shape[1] != MADE || starts->shape[1] != made->shape[0] ||
        of[9].array.size != starts->size || of[12].array.shape[1] != TARGET ||
        of[12].array.shape[0] != starts->shape[0] || of[6].array.size < of[1].array.shape[0])
        return false;
    for (int64_t buffer = 0; buffer < made->shape[0]; buffer++) {
        const int64_t source = ints_of(made)[buffer * MADE + OF_SOURCE];
        if (source < 0 || source >= of[4].array.shape[0])
            return false;
    }
    return true;
}

/* Write the payloads of the batches that were measured last, and their heads.
 *
 * 0 to 4: As for `measure_rows`.
 * 5 memory: The memory of the spans.
 * 6 sample_ids: (pieces,): the document of each.
 * 7 made: (buffers, 2): the content of each buffer, and its source; 0 if it has none.
 * 8 starts, 9 lengths: As for `measure_rows`.
 * 10 ids, 11 heads, 12 targets: As for `write_batches`.
 *
 * Returns whether everything fits together and lies in the memory; false without enough memory.
 */
static bool write_rows(const argument *of) {
    const packed_rows rows = packed_rows_of(of);
    if (!are_row_tables(of) || !are_buffers(of))
        return false;
    const array *targets = &of[12].array;
    const int64_t batches = targets->shape[0], count = rows.rows / most(1, batches);
    const int64_t row_bytes = rows.length * ints_of(&of[4].array)[ELEMENT_BYTES];
    uint8_t *scratch = NULL;
    const int64_t main = main_buffer(&of[7].array);
    if (main < 0 && has_labels(&of[7].array)) {
        scratch = malloc((size_t)row_bytes);
        if (scratch == NULL)
            return false;
    }
    int64_t head_at = 0, piece = 0;
    bool is_right = true;
    for (int64_t batch = 0; batch < batches && is_right; batch++) {
        row_batch own = {payload_of(of, 8, batch, targets), rows, batch * count, count, piece, 0,
                         &of[5].array, &of[3].array, &of[4].array, ints_of(&of[6].array),
                         &of[10].array, ints_of(&of[7].array), main, scratch};
        own.segments = count_segments(&rows, own.first, own.first + count, &piece);
        is_right = own.segments >= 0 && put_head(&own.to, &of[11].array, targets, &head_at) &&
                   put_padding(&own.to) && are_made(&own) && put_rows(&own);
        if (is_right)
            put_hash(&own.to, targets);
    }
    free(scratch);
    return is_right;
}

#endif
