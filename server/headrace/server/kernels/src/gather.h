/* Gather the rows of a batch, prefetching rows while earlier ones are copied. */

#ifndef HEADRACE_GATHER_H
#define HEADRACE_GATHER_H

#include "arrays.h"

/* Outputs of at least `PAST_BYTES` are written past the caches, where they would evict other data
 * and be read before they are written: 16 MiB of 64 KiB each take 1.8 ms instead of 3.0 (one
 * thread). This needs pieces of at least `LONG_BYTES`, whose ends are copied as usual. */
#define PAST_BYTES (4 << 20)
#define LONG_BYTES (4 << 10)
#define LINE 64
#define MOST_LINES 16 /* prefetched of a row; the processor itself prefetches longer ones */
#define TILE 64       /* rows that are looked up together */
#define AHEAD 24      /* rows prefetched ahead of the copied one (16 to 32 are equally fast) */

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) /* GCC 12, Clang */
#define HAS_SHUFFLES 1
typedef int32_t four __attribute__((vector_size(16)));
#endif
#endif
#ifndef HAS_SHUFFLES
#define HAS_SHUFFLES 0
#endif

/* Prefetch the first lines of some bytes.
 *
 * Into the second-level cache, because the first has few outstanding requests: 4,096 rows of 160
 * bytes took 65 us instead of 92.
 */
static inline void fetch_all(const uint8_t *memory, int64_t start, int64_t size) {
    const int64_t end = start + least(size, MOST_LINES * LINE);
    for (int64_t line = start & -LINE; line < end; line += LINE)
        __builtin_prefetch(memory + line, 0, 2);
}

/* Prefetch several spans; return whether all lie in the memory. */
static bool fetch_spans(const array *memory, const int64_t *starts, const int64_t *lengths,
                        int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        /* Written so that nothing can overflow. */
        if (lengths[i] < 0 || starts[i] < 0 || starts[i] > memory->size - lengths[i])
            return false;
        fetch_all(bytes_of(memory), starts[i], lengths[i]);
    }
    return true;
}

/* Copy whole lines past the caches, to the start of a line. */
static void copy_lines_anywhere(uint8_t *to, const uint8_t *from, int64_t size) {
    memcpy(to, from, (size_t)size);
}

#if HAS_AVX2_PATH
WITH_AVX2 static void copy_lines_avx2(uint8_t *to, const uint8_t *from, int64_t size) {
    for (int64_t done = 0; done < size; done += LINE) {
        const __m256i one = _mm256_loadu_si256((const __m256i *)(from + done));
        const __m256i other = _mm256_loadu_si256((const __m256i *)(from + done + 32));
        _mm256_stream_si256((__m256i *)(to + done), one);
        _mm256_stream_si256((__m256i *)(to + done + 32), other);
    }
}
#endif

static void (*copy_lines)(uint8_t *, const uint8_t *, int64_t) = copy_lines_anywhere;

/* Choose the fastest variant for this processor; called once, at the start. */
static void choose_copy(void) {
#if HAS_AVX2_PATH
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        copy_lines = copy_lines_avx2;
#endif
}

/* Copy past the caches; call `end_copies_past` after the last copy. */
static inline void copy_past(uint8_t *to, const uint8_t *from, int64_t size) {
    const int64_t head = least(size, (int64_t)(-(uintptr_t)to % LINE));
    const int64_t end = head + (size - head) / LINE * LINE;
    memcpy(to, from, (size_t)head);
    copy_lines(to + head, from + head, end - head);
    memcpy(to + end, from + end, (size_t)(size - end));
}

/* Make copies past the caches visible before any later write. */
static inline void end_copies_past(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* The places of rows: the arena, the slot of each block, the block and offset of each sample. */
typedef struct {
    const array *arena;
    const array *slot_of;
    const array *bases; /* (parts, slots): the base of each part of the block in a slot */
    const int64_t *blocks;
    const int64_t *offsets;
    int64_t count;
} rows;

/* A column of fixed size: its part; the bytes of a row; the unit of its bases in bytes; the offset
 * of the value in a row, and its bytes; the offset of the column in the output. */
enum { PART, ROW_BYTES, UNIT, AT, SIZE, TO, FIELD };

/* Return where a row lies in the arena, or -1 if the tables are wrong. */
static inline int64_t row_at(const rows *of, int64_t part, int64_t i, int64_t unit,
                             int64_t row_bytes) {
    const int64_t block = of->blocks[i];
    if (block < 0 || block >= of->slot_of->size)
        return -1;
    const int32_t slot = slots_of(of->slot_of)[block];
    if (slot < 0 || slot >= of->bases->shape[1])
        return -1;
    const int64_t base = ints_of(of->bases)[part * of->bases->shape[1] + slot] * unit;
    const int64_t start = base + of->offsets[i] * row_bytes;
    return start < 0 || start > of->arena->size - row_bytes ? -1 : start;
}

/* Gather the only column of a part; each row is copied some time after it is prefetched. */
static bool gather_column(const rows *of, const int64_t *field, uint8_t *out, bool is_past) {
    const uint8_t *memory = bytes_of(of->arena);
    const int64_t row_bytes = field[ROW_BYTES], unit = field[UNIT], at = field[AT];
    const int64_t size = field[SIZE];
    int64_t starts[AHEAD] = {0};
    is_past = is_past && size >= LONG_BYTES;
    out += field[TO];
    for (int64_t coming = 0; coming < of->count + AHEAD; coming++) {
        const int64_t i = coming - AHEAD;
        int64_t *place = starts + coming % AHEAD;
        if (i >= 0) {
            const uint8_t *from = memory + *place;
            if (size == 8)
                memcpy(out + 8 * i, from, 8);
            else if (size == 4)
                memcpy(out + 4 * i, from, 4);
            else if (is_past)
                copy_past(out + size * i, from, size);
            else
                memcpy(out + size * i, from, (size_t)size);
        }
        if (coming < of->count) {
            const int64_t start = row_at(of, field[PART], coming, unit, row_bytes);
            if (start < 0)
                return false;
            *place = start + at;
            fetch_all(memory, start + at, size);
        }
    }
    if (is_past)
        end_copies_past();
    return true;
}

/* Split one column from rows. */
static void split_column(const uint8_t *memory, const int64_t *starts, int64_t count, int64_t size,
                         uint8_t *to) {
    if (size == 4)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + 4 * i, memory + starts[i], 4);
    else if (size == 8)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + 8 * i, memory + starts[i], 8);
    else if (size == 1)
        for (int64_t i = 0; i < count; i++)
            to[i] = memory[starts[i]];
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + size * i, memory + starts[i], (size_t)size);
}

/* Return how many columns to split together: four neighbours of 4 bytes each, or one. */
static int64_t columns_together(const int64_t *fields, int64_t count) {
    if (!HAS_SHUFFLES || count < 4)
        return 1;
    for (int64_t i = 0; i < 4; i++)
        if (fields[i * FIELD + SIZE] != 4 || fields[i * FIELD + AT] != fields[AT] + 4 * i)
            return 1;
    return 4;
}

/* Split four such columns from rows, except for the last rows; return how many rows are split.
 *
 * Four rows at a time take a quarter of the loads and stores: 4,096 rows of 40 columns and a label
 * took 98 us instead of 123.
 */
static int64_t split_four(const uint8_t *memory, const int64_t *starts, int64_t count,
                          uint8_t *const *to) {
    int64_t i = 0;
#if HAS_SHUFFLES
    for (; i + 4 <= count; i += 4) {
        four row[4], pairs[4], column[4];
        for (int k = 0; k < 4; k++)
            memcpy(&row[k], memory + starts[i + k], sizeof row[k]);
        pairs[0] = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
        pairs[1] = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
        pairs[2] = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
        pairs[3] = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
        column[0] = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 4, 5);
        column[1] = __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 6, 7);
        column[2] = __builtin_shufflevector(pairs[2], pairs[3], 0, 1, 4, 5);
        column[3] = __builtin_shufflevector(pairs[2], pairs[3], 2, 3, 6, 7);
        for (int k = 0; k < 4; k++)
            memcpy(to[k] + 4 * i, &column[k], sizeof column[k]);
    }
#endif
    return i;
}

/* Gather several columns of one part; rows are prefetched while earlier ones are split. */
static bool gather_columns(const rows *of, const int64_t *fields, int64_t field_count,
                           uint8_t *out) {
    const uint8_t *memory = bytes_of(of->arena);
    const int64_t row_bytes = fields[ROW_BYTES], unit = fields[UNIT];
    int64_t starts[2][TILE];
    for (int64_t coming = 0; coming < of->count + TILE; coming += TILE) {
        const int64_t turn = coming / TILE % 2;
        for (int64_t i = 0; i < least(TILE, of->count - coming); i++) {
            const int64_t start = row_at(of, fields[PART], coming + i, unit, row_bytes);
            if (start < 0)
                return false;
            starts[turn][i] = start;
            fetch_all(memory, start, row_bytes);
        }
        const int64_t first = coming - TILE, *own = starts[1 - turn];
        const int64_t here = first < 0 ? 0 : least(TILE, of->count - first);
        for (int64_t field = 0, together; field < field_count; field += together) {
            const int64_t *next = fields + field * FIELD;
            uint8_t *to[4];
            together = columns_together(next, field_count - field);
            for (int64_t k = 0; k < together; k++)
                to[k] = out + next[k * FIELD + TO] + first * next[k * FIELD + SIZE];
            const int64_t done =
                together == 4 ? split_four(memory + next[AT], own, here, to) : 0;
            for (int64_t k = 0; k < together; k++) {
                const int64_t size = next[k * FIELD + SIZE];
                split_column(memory + next[k * FIELD + AT], own + done, here - done, size,
                             to[k] + done * size);
            }
        }
    }
    return true;
}

/* Return whether columns lie in their rows, and their values in the output. */
static bool are_fields(const rows *of, const int64_t *fields, int64_t count, int64_t out_bytes) {
    for (const int64_t *field = fields; field < fields + count * FIELD; field += FIELD)
        if (field[PART] < 0 || field[PART] >= of->bases->shape[0] || field[SIZE] < 0 ||
            field[AT] < 0 || field[AT] > field[ROW_BYTES] - field[SIZE] || field[TO] < 0 ||
            field[TO] + of->count * field[SIZE] > out_bytes)
            return false;
    return true;
}

/* Gather columns of fixed size, ordered by part.
 *
 * Returns whether everything lies in the arena and in `out`; if not, the tables are wrong.
 */
static bool gather(const rows *of, const int64_t *fields, int64_t count, uint8_t *out,
                   int64_t out_bytes) {
    if (!are_fields(of, fields, count, out_bytes))
        return false;
    for (int64_t start = 0, end; start < count; start = end) {
        const int64_t *field = fields + start * FIELD;
        end = start + 1;
        while (end < count && fields[end * FIELD + PART] == field[PART])
            end++;
        if (end == start + 1 ? !gather_column(of, field, out, out_bytes >= PAST_BYTES)
                             : !gather_columns(of, field, end - start, out))
            return false;
    }
    return true;
}

/* Find the values of a ragged column, whose spans lie at `at` in packed rows.
 *
 * `starts` receives the start of each value in the arena, `lengths` its bytes, and `edges` the
 * start of each, and the end of the last, if they lie back to back. Returns the same as `gather`.
 */
static bool find_values(const rows *of, int64_t row_bytes, int64_t at, int64_t *starts,
                        int64_t *lengths, int64_t *edges) {
    const uint8_t *memory = bytes_of(of->arena);
    if (at < 0 || at > row_bytes - 16 || of->bases->shape[0] < 1)
        return false;
    edges[0] = 0;
    for (int64_t first = 0; first < of->count; first += TILE) {
        const int64_t end = first + least(TILE, of->count - first);
        for (int64_t i = first; i < end; i++) {
            const int64_t start = row_at(of, 0, i, row_bytes, row_bytes);
            if (start < 0)
                return false;
            starts[i] = start + at;
            __builtin_prefetch(memory + start + at, 0, 2);
        }
        for (int64_t i = first; i < end; i++) {
            int64_t span[2];
            memcpy(span, memory + starts[i], sizeof span);
            if (span[1] < 0 || span[0] < 0 || span[0] > of->arena->size - span[1])
                return false;
            starts[i] = span[0];
            lengths[i] = span[1];
            edges[i + 1] = edges[i] + span[1];
        }
    }
    return true;
}

/* Copy spans of bytes back to back; return whether all lie in the memory and fit. */
static bool copy_spans(const array *memory, const int64_t *starts, const int64_t *lengths,
                       int64_t count, uint8_t *out, int64_t out_bytes) {
    const bool is_past = out_bytes >= PAST_BYTES;
    int64_t at = 0;
    for (int64_t first = 0; first < count; first += TILE) {
        const int64_t end = first + least(TILE, count - first);
        if (!fetch_spans(memory, starts + first, lengths + first, end - first))
            return false;
        for (int64_t i = first; i < end; i++) {
            if (lengths[i] > out_bytes - at)
                return false;
            if (is_past && lengths[i] >= LONG_BYTES)
                copy_past(out + at, bytes_of(memory) + starts[i], lengths[i]);
            else
                memcpy(out + at, bytes_of(memory) + starts[i], (size_t)lengths[i]);
            at += lengths[i];
        }
    }
    if (is_past)
        end_copies_past();
    return true;
}

#endif
