/* Verify stored blocks, expand compressed ones, and write them into the arena.
 *
 * This supports only the usual kinds of blocks: Arrow messages without nulls, uncompressed or
 * compressed with LZ4. Any other block, and a damaged one, is only reported as such; then
 * headrace.storage.shard.block decodes it, or refuses it with a reason.
 *
 * Source: Message.fbs and the page "Serialization and Interprocess Communication" of the Arrow
 * format, version 1.5; tables and vectors are those of FlatBuffers.
 */

#ifndef HEADRACE_STORED_H
#define HEADRACE_STORED_H

#include "arrays.h"
#include "gather.h"
#include "hash.h"
#include "lz4.h"

/* A block as its manifest describes it: its start in the bytes that were read, its bytes, its
 * samples, their raw bytes, its checksum. If it was compressed, also its expanded bytes; it then
 * starts in these instead. */
enum {
    STORED_AT,
    STORED_BYTES,
    STORED_SAMPLES,
    STORED_RAW,
    STORED_HASH,
    STORED_EXPANDED,
    STORED_PLACE
};

/* A column: its kind; the numbers of its first node and of its buffers of offsets and values; the
 * bytes of a row, or of an element if rows differ; the elements of a list; its part of the block;
 * the offsets of its value or span, and of its validity byte, in a row (-1 for none). */
enum {
    COLUMN_KIND,
    COLUMN_NODE,
    COLUMN_OFFSETS,
    COLUMN_VALUES,
    COLUMN_BYTES,
    COLUMN_ITEMS,
    COLUMN_PART,
    COLUMN_AT,
    COLUMN_VALID,
    COLUMN_FIELDS
};
enum { FIXED_ROWS, LIST_ROWS, RAGGED_ROWS, TEXT_ROWS, ROW_KINDS };

/* A part of the block: the bytes of a row, and whether it starts at a multiple of them. */
enum { STORED_ROW_BYTES, STORED_IS_ALIGNED, STORED_PART };

#define MESSAGE_HEAD 8
#define RECORD_BATCH 3
#define PREFIX 8 /* of a compressed buffer: its expanded bytes, or -1 if it is stored as is */
#define PAIR 16
#define SPAN 16
#define NON_ASCII UINT64_C(0x8080808080808080)

typedef struct {
    const uint8_t *data;
    int64_t size;
} piece;

/* A FlatBuffers table: its start, and the start and the bytes of its list of fields. */
typedef struct {
    int64_t start;
    int64_t fields;
    int64_t fields_bytes;
} table;

/* The buffers of a record batch, as pairs of offset and length, and the body with them.
 *
 * If they are compressed, also where the message states the bytes of the body and the codec; else
 * 0. */
typedef struct {
    const uint8_t *nodes;
    const uint8_t *buffers;
    piece body;
    int64_t body_bytes_at;
    int64_t codec_at;
} batch;

static bool is_inside(const piece *in, int64_t at, int64_t size) {
    return at >= 0 && at <= in->size - size;
}

static inline int64_t long_at(const uint8_t *from) { return (int64_t)word_at(from); }

static inline int64_t half_long_at(const uint8_t *from) {
    return (int32_t)((uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
                     (uint32_t)from[3] << 24);
}

/* Return the place that an unsigned offset points to, or -1. */
static int64_t led_to(const piece *in, int64_t at) {
    if (!is_inside(in, at, 4))
        return -1;
    return at + (half_long_at(in->data + at) & UINT32_MAX);
}

static bool find_table(const piece *in, int64_t start, table *found) {
    if (!is_inside(in, start, 4))
        return false;
    const int64_t fields = start - half_long_at(in->data + start);
    if (!is_inside(in, fields, 4))
        return false;
    *found = (table){start, fields, short_at(in->data + fields)};
    return is_inside(in, fields, found->fields_bytes);
}

/* Return the start of a field of a given size, or -1. */
static int64_t field_at(const piece *in, const table *of, int field, int64_t size) {
    const int64_t entry = 4 + 2 * field;
    if (entry + 2 > of->fields_bytes)
        return -1;
    const int64_t offset = short_at(in->data + of->fields + entry);
    return offset && is_inside(in, of->start + offset, size) ? of->start + offset : -1;
}

/* Return a vector of a given number of pairs; NULL if the number differs. */
static const uint8_t *pairs_at(const piece *in, const table *of, int field, int64_t count) {
    const int64_t at = field_at(in, of, field, 4);
    const int64_t start = at < 0 ? -1 : led_to(in, at);
    if (start < 0 || !is_inside(in, start, 4) ||
        (half_long_at(in->data + start) & UINT32_MAX) != count ||
        !is_inside(in, start + 4, count * PAIR))
        return NULL;
    return in->data + start + 4;
}

/* Find the record batch with given numbers of samples, nodes and buffers. */
static bool find_batch(const piece *message, int64_t samples, int64_t nodes, int64_t buffers,
                       batch *found) {
    if (message->size < MESSAGE_HEAD || half_long_at(message->data) != -1)
        return false;
    const int64_t metadata_bytes = half_long_at(message->data + 4);
    if (metadata_bytes < 0 || metadata_bytes > message->size - MESSAGE_HEAD)
        return false;
    const piece metadata = {message->data + MESSAGE_HEAD, metadata_bytes};
    table head, of;
    if (!find_table(&metadata, led_to(&metadata, 0), &head))
        return false;
    const int64_t kind = field_at(&metadata, &head, 1, 1);
    const int64_t place = field_at(&metadata, &head, 2, 4);
    const int64_t bytes = field_at(&metadata, &head, 3, 8);
    if (kind < 0 || metadata.data[kind] != RECORD_BATCH || place < 0 || bytes < 0 ||
        !find_table(&metadata, led_to(&metadata, place), &of))
        return false;
    found->body = (piece){metadata.data + metadata_bytes, long_at(metadata.data + bytes)};
    if (found->body.size < 0 ||
        found->body.size > message->size - MESSAGE_HEAD - metadata_bytes)
        return false;
    const int64_t rows = field_at(&metadata, &of, 0, 8);
    if (rows < 0 || long_at(metadata.data + rows) != samples)
        return false;
    const int64_t compression = field_at(&metadata, &of, 3, 4);
    found->body_bytes_at = found->codec_at = 0;
    if (compression >= 0) {
        table how;
        if (!find_table(&metadata, led_to(&metadata, compression), &how))
            return false;
        const int64_t codec = field_at(&metadata, &how, 0, 1);
        if (codec >= 0 && metadata.data[codec]) /* 0, the default, is LZ4 */
            return false;
        found->body_bytes_at = MESSAGE_HEAD + bytes;
        found->codec_at = MESSAGE_HEAD + of.fields + 4 + 2 * 3;
    }
    found->nodes = pairs_at(&metadata, &of, 1, nodes);
    found->buffers = pairs_at(&metadata, &of, 2, buffers);
    return found->nodes != NULL && found->buffers != NULL;
}

/* Return whether no node states nulls, and all buffers lie side by side in the body. */
static bool are_plain(const batch *of, int64_t nodes, int64_t buffers) {
    for (int64_t i = 0; i < nodes; i++)
        if (long_at(of->nodes + PAIR * i + 8) != 0)
            return false;
    int64_t end = 0;
    for (int64_t i = 0; i < buffers; i++) {
        const int64_t start = long_at(of->buffers + PAIR * i);
        const int64_t size = long_at(of->buffers + PAIR * i + 8);
        if (start < end || size < 0 || size > of->body.size || start > of->body.size - size)
            return false;
        end = start + size;
    }
    return true;
}

static piece buffer_of(const batch *of, int64_t number) {
    const uint8_t *pair = of->buffers + PAIR * number;
    return (piece){of->body.data + long_at(pair), long_at(pair + 8)};
}

/* Return the bytes that a message has without compression; -1 if its buffers state more than
 * `most_bytes`. */
static int64_t expanded_bytes(const piece *message, const batch *of, int64_t buffers,
                              int64_t most_bytes) {
    int64_t size = of->body.data - message->data;
    for (int64_t i = 0; i < buffers; i++) {
        const piece from = buffer_of(of, i);
        if (!from.size)
            continue;
        int64_t stated = from.size < PREFIX ? -2 : long_at(from.data);
        stated = stated == -1 ? from.size - PREFIX : stated;
        if (stated < 0 || stated > most_bytes)
            return -1;
        most_bytes -= stated;
        size += (stated + 7) / 8 * 8;
    }
    return size;
}

/* Write a message as it would be without compression; the caller checks the result. */
static bool expand(const piece *message, const batch *of, int64_t buffers, uint8_t *to,
                   int64_t to_size) {
    const int64_t head = of->body.data - message->data;
    uint8_t *pairs = to + (of->buffers - message->data);
    memcpy(to, message->data, (size_t)head);
    int64_t end = 0;
    for (int64_t i = 0; i < buffers; i++) {
        const piece from = buffer_of(of, i);
        int64_t size = 0;
        if (from.size) {
            const int64_t stated = long_at(from.data);
            size = stated == -1 ? from.size - PREFIX : stated;
            if (size > to_size - head - end)
                return false;
            if (stated == -1)
                memcpy(to + head + end, from.data + PREFIX, (size_t)size);
            else if (!expand_frame(from.data + PREFIX, from.size - PREFIX, to + head + end, size))
                return false;
        }
        put_word(pairs + PAIR * i, (uint64_t)end);
        put_word(pairs + PAIR * i + 8, (uint64_t)size);
        end += (size + 7) / 8 * 8;
    }
    put_word(to + of->body_bytes_at, (uint64_t)end);
    to[of->codec_at] = to[of->codec_at + 1] = 0;
    return true;
}

static bool is_ascii(const uint8_t *from, int64_t size) {
    uint64_t seen = 0;
    int64_t at = 0;
    for (; at + 8 <= size; at += 8)
        seen |= word_at(from + at);
    for (; at < size; at++)
        seen |= from[at];
    return !(seen & NON_ASCII);
}

/* Return whether a text is UTF-8, and so is each of its rows. */
static bool is_utf8(const uint8_t *from, int64_t size, const uint8_t *offsets, int64_t rows) {
    if (is_ascii(from, size))
        return true;
    int64_t at = 0;
    while (at < size) {
        if (at + 8 <= size && !(word_at(from + at) & NON_ASCII)) {
            at += 8;
            continue;
        }
        const uint8_t lead = from[at++];
        if (lead < 0x80)
            continue;
        const int64_t more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (lead < 0xC2 || lead > 0xF4 || more > size - at)
            return false;
        /* Refuses overlong forms, surrogates, and codes beyond the last one. */
        const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (from[at] < low || from[at] > high)
            return false;
        for (int64_t i = 1; i < more; i++)
            if ((from[at + i] & 0xC0) != 0x80)
                return false;
        at += more;
    }
    const int64_t first = half_long_at(offsets);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t start = half_long_at(offsets + 4 * row) - first;
        if (start < size && (from[start] & 0xC0) == 0x80)
            return false;
    }
    return true;
}

/* Return whether offsets rise, by `items` each unless that is negative, up to `most`. */
static bool are_edges(const uint8_t *offsets, int64_t rows, int64_t items, int64_t most_elements) {
    int64_t before = half_long_at(offsets);
    bool is_right = before >= 0;
    for (int64_t row = 1; row <= rows; row++) {
        const int64_t next = half_long_at(offsets + 4 * row);
        is_right &= items < 0 ? next >= before : next - before == items;
        before = next;
    }
    return is_right && before <= most_elements;
}

/* Find the values of a column: of fixed size per row, or of all rows together. */
static bool find_column(const batch *of, const int64_t *column, int64_t samples, piece *found) {
    const piece values = buffer_of(of, column[COLUMN_VALUES]);
    const int64_t kind = column[COLUMN_KIND], bytes = column[COLUMN_BYTES];
    if (long_at(of->nodes + PAIR * column[COLUMN_NODE]) != samples)
        return false;
    if (kind == FIXED_ROWS) {
        *found = (piece){values.data, samples * bytes};
        return values.size >= found->size;
    }
    const piece offsets = buffer_of(of, column[COLUMN_OFFSETS]);
    const int64_t items = kind == LIST_ROWS ? column[COLUMN_ITEMS] : -1;
    const int64_t element_bytes = kind == LIST_ROWS ? bytes / items : bytes;
    if (offsets.size / 4 < samples + 1 ||
        !are_edges(offsets.data, samples, items, values.size / element_bytes))
        return false;
    const int64_t first = half_long_at(offsets.data);
    const int64_t last = half_long_at(offsets.data + 4 * samples);
    *found = (piece){values.data + first * element_bytes, (last - first) * element_bytes};
    return true;
}

/* Return whether columns and parts fit together, so that no row is written beyond its end. */
static bool are_columns(const array *columns, const array *parts, int64_t nodes, int64_t buffers) {
    if (columns->shape[1] != COLUMN_FIELDS || parts->shape[1] != STORED_PART || nodes < 0 ||
        buffers < 0 || parts->shape[0] < 1)
        return false;
    for (int64_t i = 0; i < parts->shape[0]; i++) {
        const int64_t row_bytes = ints_of(parts)[i * STORED_PART + STORED_ROW_BYTES];
        if (row_bytes < 0 || row_bytes > INT32_MAX)
            return false;
    }
    for (int64_t i = 0; i < columns->shape[0]; i++) {
        const int64_t *of = ints_of(columns) + i * COLUMN_FIELDS;
        const bool is_fixed = of[COLUMN_KIND] == FIXED_ROWS || of[COLUMN_KIND] == LIST_ROWS;
        const bool has_offsets = of[COLUMN_KIND] != FIXED_ROWS;
        if (of[COLUMN_KIND] < 0 || of[COLUMN_KIND] >= ROW_KINDS || of[COLUMN_NODE] < 0 ||
            of[COLUMN_NODE] >= nodes || of[COLUMN_VALUES] < 0 || of[COLUMN_VALUES] >= buffers ||
            (has_offsets && (of[COLUMN_OFFSETS] < 0 || of[COLUMN_OFFSETS] >= buffers)) ||
            of[COLUMN_BYTES] < 1 || of[COLUMN_BYTES] > INT32_MAX || of[COLUMN_PART] < 0 ||
            of[COLUMN_PART] >= parts->shape[0] ||
            (of[COLUMN_KIND] == LIST_ROWS &&
             (of[COLUMN_ITEMS] < 1 || of[COLUMN_BYTES] % of[COLUMN_ITEMS])))
            return false;
        const int64_t size = is_fixed ? of[COLUMN_BYTES] : SPAN;
        const int64_t part = is_fixed ? of[COLUMN_PART] : 0;
        if (of[COLUMN_AT] < 0 || of[COLUMN_AT] > ints_of(parts)[part * STORED_PART] - size ||
            of[COLUMN_VALID] >= ints_of(parts)[0])
            return false;
    }
    return true;
}

static bool find_block(const array *in, const int64_t *place, int64_t nodes, int64_t buffers,
                       piece *message, batch *found) {
    const int64_t at = place[STORED_AT], size = place[STORED_BYTES];
    if (place[STORED_SAMPLES] < 1 || place[STORED_SAMPLES] > INT32_MAX - 1 || at < 0 || size < 0 ||
        at > in->size - size)
        return false;
    *message = (piece){bytes_of(in) + at, size};
    return find_batch(message, place[STORED_SAMPLES], nodes, buffers, found) &&
           are_plain(found, nodes, buffers);
}

/* Return the bytes of ragged values of a block; -1 if a column is damaged or unusual. */
static int64_t check_columns(const batch *found, const int64_t *place, const array *columns) {
    int64_t ragged_bytes = 0;
    for (int64_t i = 0; i < columns->shape[0]; i++) {
        const int64_t *of = ints_of(columns) + i * COLUMN_FIELDS;
        piece values;
        if (!find_column(found, of, place[STORED_SAMPLES], &values))
            return -1;
        if (of[COLUMN_KIND] == TEXT_ROWS &&
            !is_utf8(values.data, values.size, buffer_of(found, of[COLUMN_OFFSETS]).data,
                     place[STORED_SAMPLES]))
            return -1;
        if (of[COLUMN_KIND] >= RAGGED_ROWS)
            ragged_bytes += values.size;
    }
    return ragged_bytes;
}

/* Return the bytes of ragged values if a block matches its manifest, else -1; of a compressed one,
 * only note its expanded bytes. */
static int64_t check_block(const array *stored, int64_t *place, const array *columns, int64_t nodes,
                           int64_t buffers) {
    piece message;
    batch found;
    if (place[STORED_BYTES] < SHORTEST ||
        !find_block(stored, place, nodes, buffers, &message, &found) ||
        hash_of(message.data, message.size) != (uint64_t)place[STORED_HASH])
        return -1;
    if (!found.codec_at)
        return check_columns(&found, place, columns);
    /* Raw bytes count some values differently, and no padding, as in headrace.storage.shard.block.
     */
    const int64_t most_bytes =
        2 * place[STORED_RAW] + (place[STORED_SAMPLES] / 8 + 1024) * buffers;
    place[STORED_EXPANDED] = most(0, expanded_bytes(&message, &found, buffers, most_bytes));
    return -1;
}

/* Expand a block to `[at, at + STORED_EXPANDED)`, and check it as `check_block` does. */
static int64_t check_expanded(const array *stored, int64_t *place, const array *columns,
                              int64_t nodes, int64_t buffers, const array *to, int64_t at) {
    piece message;
    batch found;
    if (!find_block(stored, place, nodes, buffers, &message, &found) ||
        !expand(&message, &found, buffers, bytes_to(to) + at, place[STORED_EXPANDED]))
        return -1;
    place[STORED_AT] = at;
    place[STORED_BYTES] = place[STORED_EXPANDED];
    if (!find_block(to, place, nodes, buffers, &message, &found) || found.codec_at)
        return -1;
    return check_columns(&found, place, columns);
}

#define MOST_PARTS 4096

/* Copy values of fixed size to where each row has its own. */
static void write_fixed(uint8_t *rows, int64_t row_bytes, const uint8_t *values, int64_t bytes,
                        int64_t samples) {
    if (row_bytes == bytes) {
        memcpy(rows, values, (size_t)(bytes * samples));
    } else if (bytes == 8) {
        for (int64_t row = 0; row < samples; row++)
            memcpy(rows + row * row_bytes, values + row * 8, 8);
    } else if (bytes == 4) {
        for (int64_t row = 0; row < samples; row++)
            memcpy(rows + row * row_bytes, values + row * 4, 4);
    } else {
        for (int64_t row = 0; row < samples; row++)
            memcpy(rows + row * row_bytes, values + row * bytes, (size_t)bytes);
    }
}

/* Write the span of each row's values; the first element lies at `start`. */
static void write_spans(uint8_t *rows, int64_t row_bytes, const uint8_t *offsets, int64_t bytes,
                        int64_t samples, int64_t start) {
    const int64_t first = half_long_at(offsets);
    for (int64_t row = 0; row < samples; row++) {
        const int64_t from = half_long_at(offsets + 4 * row);
        const int64_t to = half_long_at(offsets + 4 * row + 4);
        const int64_t span[2] = {start + (from - first) * bytes, (to - from) * bytes};
        memcpy(rows + row * row_bytes, span, sizeof span);
    }
}

/* Write a checked block to `[start, start + size)` of the arena, and the base of each part; false
 * if it does not fit there. */
static bool write_block(const array *in, const int64_t *place, const array *columns,
                        const array *parts, int64_t nodes, int64_t buffers, const array *arena,
                        int64_t start, int64_t size, int64_t *bases) {
    piece message;
    batch found;
    if (start < 0 || size < 0 || start > arena->size - size ||
        !find_block(in, place, nodes, buffers, &message, &found) || found.codec_at)
        return false;
    const int64_t samples = place[STORED_SAMPLES];
    int64_t end = start;
    int64_t starts[MOST_PARTS];
    for (int64_t i = 0; i < parts->shape[0]; i++) {
        const int64_t row_bytes = ints_of(parts)[i * STORED_PART + STORED_ROW_BYTES];
        const bool is_aligned = ints_of(parts)[i * STORED_PART + STORED_IS_ALIGNED];
        if (is_aligned && row_bytes)
            end += (row_bytes - end % row_bytes) % row_bytes;
        starts[i] = end;
        bases[i] = !row_bytes ? 0 : is_aligned ? end / row_bytes : end;
        end += row_bytes * samples;
        if (end > start + size)
            return false;
    }
    const int64_t packed_bytes = ints_of(parts)[STORED_ROW_BYTES];
    uint8_t *packed = bytes_to(arena) + starts[0];
    for (int64_t i = 0; i < columns->shape[0]; i++) {
        const int64_t *column = ints_of(columns) + i * COLUMN_FIELDS;
        const int64_t at = column[COLUMN_AT], bytes = column[COLUMN_BYTES];
        piece values;
        if (!find_column(&found, column, samples, &values))
            return false;
        if (column[COLUMN_KIND] < RAGGED_ROWS) {
            const int64_t part = column[COLUMN_PART];
            write_fixed(bytes_to(arena) + starts[part] + at,
                        ints_of(parts)[part * STORED_PART + STORED_ROW_BYTES], values.data, bytes,
                        samples);
        } else {
            if (values.size > start + size - end)
                return false;
            memcpy(bytes_to(arena) + end, values.data, (size_t)values.size);
            write_spans(packed + at, packed_bytes,
                        buffer_of(&found, column[COLUMN_OFFSETS]).data, bytes, samples, end);
            end += values.size;
        }
        if (column[COLUMN_VALID] >= 0)
            for (int64_t row = 0; row < samples; row++)
                packed[row * packed_bytes + column[COLUMN_VALID]] = 1;
    }
    return true;
}

/* Write checked blocks, each to its extent; false if one does not fit there. */
static bool write_blocks(const argument *of) {
    const array *places = &of[2].array, *columns = &of[3].array, *parts = &of[4].array;
    const array *starts = &of[8].array, *sizes = &of[9].array, *bases = &of[10].array;
    const int64_t count = places->shape[0], nodes = of[5].number, buffers = of[6].number;
    if (places->shape[1] != STORED_PLACE || starts->size < count || sizes->size < count ||
        bases->shape[0] < count || bases->shape[1] != parts->shape[0] ||
        parts->shape[0] > MOST_PARTS || !are_columns(columns, parts, nodes, buffers))
        return false;
    for (int64_t i = 0; i < count; i++) {
        const int64_t *place = ints_of(places) + i * STORED_PLACE;
        if (!write_block(&of[place[STORED_EXPANDED] ? 1 : 0].array, place, columns, parts, nodes,
                         buffers, &of[7].array, ints_of(starts)[i], ints_of(sizes)[i],
                         ints_of(bases) + i * bases->shape[1]))
            return false;
    }
    return true;
}

/* Check blocks, and write the bytes of their ragged values, or -1. Return the expanded bytes of all
 * compressed ones; -1 if the arguments do not fit together. */
static int64_t check_blocks(const argument *of) {
    const array *stored = &of[0].array, *places = &of[1].array, *columns = &of[2].array;
    const array *found = &of[6].array;
    if (places->shape[1] != STORED_PLACE || found->size < places->shape[0] ||
        !are_columns(columns, &of[3].array, of[4].number, of[5].number))
        return -1;
    int64_t expanded = 0;
    for (int64_t i = 0; i < places->shape[0]; i++) {
        int64_t *place = ints_of(places) + i * STORED_PLACE;
        place[STORED_EXPANDED] = 0;
        ints_of(found)[i] = check_block(stored, place, columns, of[4].number, of[5].number);
        expanded += place[STORED_EXPANDED];
    }
    return expanded;
}

/* Expand the blocks that `check_blocks` found compressed, and check them. */
static void expand_blocks(const argument *of, const array *to) {
    const array *stored = &of[0].array, *places = &of[1].array, *columns = &of[2].array;
    int64_t at = 0;
    for (int64_t i = 0; i < places->shape[0]; i++) {
        int64_t *place = ints_of(places) + i * STORED_PLACE;
        if (!place[STORED_EXPANDED])
            continue;
        ints_of(&of[6].array)[i] =
            check_expanded(stored, place, columns, of[4].number, of[5].number, to, at);
        at += place[STORED_EXPANDED];
    }
}

#endif
