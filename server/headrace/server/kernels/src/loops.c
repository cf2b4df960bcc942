/* The module headrace.server.kernels._loops: functions for Python; `_loops.pyi` has their types.
 *
 * No loop reads or writes outside the arrays and addresses that it is given. Long loops release
 * Python's lock; short ones keep it, because getting it back would take longer.
 */

#include "arrays.h"
#include "batches.h"
#include "blocks.h"
#include "deal.h"
#include "gather.h"
#include "hash.h"
#include "images.h"
#include "order.h"
#include "pack.h"
#include "rows.h"
#include "stored.h"

#ifndef SOURCES
#define SOURCES ""
#endif

#define GIVEN PyObject *module, PyObject *const *given, Py_ssize_t count
#define TAKE(name, letters)                                                                        \
    arguments taken;                                                                               \
    if (!take(name, letters, given, count, &taken))                                                \
        return NULL;                                                                               \
    const argument *of = taken.of
#define ARRAY(place) (&of[place].array)

static PyObject *end_with(arguments *taken, PyObject *result) {
    give_back(taken);
    return result;
}

static PyObject *refuse(arguments *taken, const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return end_with(taken, NULL);
}

static PyObject *done(arguments *taken) { return end_with(taken, Py_NewRef(Py_None)); }

/* Functions whose loop releases Python's lock, by what they tell Python: what the loop answers;
 * nothing, or why the arguments are refused; and that too, or that memory is lacking. */
#define LOOP(name, letters, type, loop)                                                            \
    TAKE(#name, letters);                                                                          \
    type found;                                                                                    \
    Py_BEGIN_ALLOW_THREADS;                                                                        \
    found = loop;                                                                                  \
    Py_END_ALLOW_THREADS
#define ANSWERS(name, letters, loop)                                                               \
    static PyObject *py_##name(GIVEN) {                                                            \
        LOOP(name, letters, bool, loop);                                                           \
        return end_with(&taken, PyBool_FromLong(found));                                           \
    }
#define REFUSES(name, letters, loop, why)                                                          \
    static PyObject *py_##name(GIVEN) {                                                            \
        LOOP(name, letters, bool, loop);                                                           \
        return found ? done(&taken) : refuse(&taken, #name ": " why);                              \
    }
#define ALLOCATES(name, letters, loop, why)                                                        \
    static PyObject *py_##name(GIVEN) {                                                            \
        LOOP(name, letters, int, loop);                                                            \
        if (found == -1)                                                                           \
            return end_with(&taken, PyErr_NoMemory());                                             \
        return found ? refuse(&taken, #name ": " why) : done(&taken);                              \
    }

/* ---- The order ---- */

static PyObject *py_sorting_words(GIVEN) {
    TAKE("sorting_words", "kknU");
    if (of[2].number < 0 || of[2].number > 32)
        return refuse(&taken, "sorting_words: the numbers have more than 32 bits");
    Py_BEGIN_ALLOW_THREADS;
    sorting_words(of[0].word, of[1].word, of[2].number, words_of(ARRAY(3)), ARRAY(3)->size);
    Py_END_ALLOW_THREADS;
    return done(&taken);
}

static PyObject *py_network_tables(GIVEN) {
    TAKE("network_tables", "kknnW");
    Py_BEGIN_ALLOW_THREADS;
    network_tables(of[0].word, of[1].word, of[2].number, of[3].number, ARRAY(4));
    Py_END_ALLOW_THREADS;
    return done(&taken);
}

static PyObject *py_walk(GIVEN) {
    TAKE("walk", "wnnlL");
    const network through = network_of(ARRAY(0), of[1].number, of[2].number);
    bool is_right = is_network(&through) && ARRAY(4)->size >= ARRAY(3)->size;
    Py_BEGIN_ALLOW_THREADS;
    is_right = is_right && walk(&through, ints_of(ARRAY(3)), ints_of(ARRAY(4)), ARRAY(3)->size);
    Py_END_ALLOW_THREADS;
    if (!is_right)
        return refuse(&taken, "walk: the tables are not those of a network for this count");
    return done(&taken);
}

ALLOCATES(find_dealt, "mlwnmkkmminlMnLL", find_dealt(of), "the tables do not fit together")

/* ---- Blocks ---- */

ANSWERS(distinct, "llnLL", distinct(ARRAY(0), ARRAY(1), of[2].number, ARRAY(3), ARRAY(4)))
REFUSES(find_spans, "lhnlLL",
        find_spans(ARRAY(0), ARRAY(1), of[2].number, ARRAY(3), ARRAY(4), ARRAY(5)),
        "the tables do not fit together")

static PyObject *py_pin(GIVEN) {
    TAKE("pin", "ILin");
    pin(ARRAY(0), ARRAY(1), ARRAY(2), of[3].number);
    return done(&taken);
}

static PyObject *py_pin_all(GIVEN) {
    TAKE("pin_all", "ilILnI");
    const int64_t hits =
        pin_all(ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3), of[4].number, ARRAY(5));
    return end_with(&taken, PyLong_FromLongLong(hits));
}

static PyObject *py_ask(GIVEN) {
    TAKE("ask", "ilLn");
    const bool are_cached = ask(ARRAY(0), ARRAY(1), ARRAY(2), of[3].number);
    return end_with(&taken, PyBool_FromLong(are_cached));
}

static PyObject *py_unpin(GIVEN) {
    TAKE("unpin", "Ii");
    unpin(ARRAY(0), ARRAY(1));
    return done(&taken);
}

static PyObject *py_touch(GIVEN) {
    TAKE("touch", "B");
    Py_BEGIN_ALLOW_THREADS;
    touch(ARRAY(0));
    Py_END_ALLOW_THREADS;
    return done(&taken);
}

static PyObject *py_find_slots(GIVEN) {
    TAKE("find_slots", "mllI");
    joined all;
    if (!is_joined(ARRAY(0), ARRAY(1), &all) || !find_slots(&all, ARRAY(2), ARRAY(3)))
        return refuse(&taken, "find_slots: a block belongs to no dataset");
    return done(&taken);
}

static PyObject *py_find_bases(GIVEN) {
    TAKE("find_bases", "mllM");
    joined all;
    if (!is_joined(ARRAY(0), ARRAY(1), &all) || !find_bases(&all, ARRAY(2), ARRAY(3)))
        return refuse(&taken, "find_bases: a block is not cached, or belongs to no dataset");
    return done(&taken);
}

static PyObject *py_check_blocks(GIVEN) {
    TAKE("check_blocks", "bMmmnnL");
    int64_t expanded;
    Py_BEGIN_ALLOW_THREADS;
    expanded = check_blocks(of);
    Py_END_ALLOW_THREADS;
    if (expanded < 0)
        return refuse(&taken, "check_blocks: the columns do not fit the parts");
    PyObject *content = PyBytes_FromStringAndSize(NULL, expanded);
    if (content == NULL || !expanded)
        return end_with(&taken, content);
    const array to = {PyBytes_AsString(content), expanded, {expanded}};
    Py_BEGIN_ALLOW_THREADS;
    expand_blocks(of, &to);
    Py_END_ALLOW_THREADS;
    return end_with(&taken, content);
}

ANSWERS(expand, "bB",
        expand_frame(bytes_of(ARRAY(0)), ARRAY(0)->size, bytes_to(ARRAY(1)), ARRAY(1)->size))
REFUSES(write_blocks, "bbmmmnnBllM", write_blocks(of),
        "a block does not fit into its place in the arena")

/* ---- Batches ---- */

static PyObject *py_gather(GIVEN) {
    TAKE("gather", "bimllmB");
    bool is_found = ARRAY(5)->shape[1] == FIELD;
    Py_BEGIN_ALLOW_THREADS;
    const rows all = rows_of(of);
    is_found = is_found && gather(&all, ints_of(ARRAY(5)), ARRAY(5)->shape[0], bytes_to(ARRAY(6)),
                                  ARRAY(6)->size);
    Py_END_ALLOW_THREADS;
    return end_with(&taken, PyBool_FromLong(is_found));
}

ANSWERS(copy_spans, "bllB",
        copy_spans(ARRAY(0), ints_of(ARRAY(1)), ints_of(ARRAY(2)),
                   least(ARRAY(1)->size, ARRAY(2)->size), bytes_to(ARRAY(3)), ARRAY(3)->size))
ANSWERS(measure_batches, "bimllnmmCMM", measure_batches(of))
ANSWERS(write_batches, "bimllmmcmmbnbm", write_batches(of))

static PyObject *py_copy_spans_to_parts(GIVEN) {
    TAKE("copy_spans_to_parts", "blllnnnnUL");
    const parts_out to = {ARRAY(3), of[4].number, of[5].number, words_of(ARRAY(8)),
                          ints_of(ARRAY(9))};
    bool is_found = are_parts(&to, ARRAY(8), ARRAY(9));
    Py_BEGIN_ALLOW_THREADS;
    is_found = is_found && copy_spans_to_parts(ARRAY(0), ints_of(ARRAY(1)), ints_of(ARRAY(2)),
                                               least(ARRAY(1)->size, ARRAY(2)->size), &to,
                                               of[6].number, of[7].number);
    Py_END_ALLOW_THREADS;
    return end_with(&taken, PyBool_FromLong(is_found));
}

/* ---- Ranks and rows ---- */

ALLOCATES(deal_evenly, "ldllDdL", deal_evenly(of), "the arrays do not fit together")

static PyObject *py_best_fit(GIVEN) {
    TAKE("best_fit", "lllnnnM");
    const packing given_to = {ints_of(ARRAY(0)), ints_of(ARRAY(1)), ints_of(ARRAY(2)),
                              ARRAY(0)->size,    of[3].number,      of[4].number,
                              of[5].number,      ints_of(ARRAY(6))};
    if (ARRAY(1)->size < ARRAY(0)->size || ARRAY(2)->size < ARRAY(0)->size || of[3].number < 1 ||
        of[5].number < 0 || ARRAY(6)->shape[1] != PACKED ||
        ARRAY(6)->shape[0] < ARRAY(0)->size + of[5].number)
        return refuse(&taken, "best_fit: the arrays do not fit together");
    packed found;
    Py_BEGIN_ALLOW_THREADS;
    found = best_fit(&given_to);
    Py_END_ALLOW_THREADS;
    if (found.pieces == -2)
        return end_with(&taken, PyErr_NoMemory());
    return end_with(&taken, Py_BuildValue("LL", (long long)found.pieces, (long long)found.rows));
}

static bool are_wanted(const wanted_rows *of) {
    return of->groups->shape[1] == GROUP && of->which->size >= of->rows->size;
}

static PyObject *py_count_pieces(GIVEN) {
    TAKE("count_pieces", "mllL");
    const wanted_rows wanted = {ARRAY(0), ARRAY(1), ARRAY(2)};
    int64_t found = -1;
    if (are_wanted(&wanted) && ARRAY(3)->size >= ARRAY(2)->size)
        found = count_pieces(&wanted, ints_of(ARRAY(3)));
    if (found < 0)
        return refuse(&taken, "count_pieces: a row lies in no group");
    return end_with(&taken, PyLong_FromLongLong(found));
}

static PyObject *py_take_pieces(GIVEN) {
    TAKE("take_pieces", "mlllLM");
    const wanted_rows wanted = {ARRAY(0), ARRAY(1), ARRAY(2)};
    if (!are_wanted(&wanted) || ARRAY(3)->size < ARRAY(2)->size ||
        ARRAY(5)->shape[1] != GROUP_PIECE - 1 ||
        !take_pieces(&wanted, ints_of(ARRAY(3)), ARRAY(4), ARRAY(5)))
        return refuse(&taken, "take_pieces: a row lies in no group, or its pieces have no room");
    return done(&taken);
}

ANSWERS(find_ragged, "bimllnmC", find_ragged(of, ARRAY(7)))
ANSWERS(measure_rows, "lmncmnmMM", measure_rows(of))
ANSWERS(fit_labels, "lmncmb", fit_labels(of))
ANSWERS(write_rows, "lmncmblmmmbbm", write_rows(of))

/* ---- Images ---- */

ALLOCATES(resample, "blB", resample(ARRAY(0), ARRAY(1), ARRAY(2)),
          "the part does not lie in the image")
REFUSES(map_levels, "bblB", map_levels(ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3)),
        "tables, pixels and output do not fit together")

static PyObject *py_mix_pixels(GIVEN) {
    TAKE("mix_pixels", "bbdnB");
    int found;
    Py_BEGIN_ALLOW_THREADS;
    found = mix_pixels(ARRAY(0), ARRAY(1), ARRAY(2), of[3].number, ARRAY(4));
    Py_END_ALLOW_THREADS;
    if (found == -2)
        return refuse(&taken, "mix_pixels: the images have different sizes or an unsupported type");
    return end_with(&taken, PyBool_FromLong(found == 0));
}

static PyObject *py_count_scans(GIVEN) {
    TAKE("count_scans", "b");
    int64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = count_scans(bytes_of(ARRAY(0)), ARRAY(0)->size);
    Py_END_ALLOW_THREADS;
    return end_with(&taken, PyLong_FromLongLong(found));
}

/* ---- Hashes ---- */

static PyObject *py_begin_hash(GIVEN) {
    TAKE("begin_hash", "U");
    if (ARRAY(0)->size < LANES)
        return refuse(&taken, "begin_hash: fewer than 8 sums");
    begin_sums(words_of(ARRAY(0)));
    return done(&taken);
}

static PyObject *py_hash_parts(GIVEN) {
    TAKE("hash_parts", "lnnnUL");
    const parts_out to = {ARRAY(0), of[1].number, of[2].number, words_of(ARRAY(4)),
                          ints_of(ARRAY(5))};
    if (!are_parts(&to, ARRAY(4), ARRAY(5)) || of[3].number > to.size || *to.hashed < 0)
        return refuse(&taken, "hash_parts: the payload does not fit its parts");
    Py_BEGIN_ALLOW_THREADS;
    hash_parts(&to, of[3].number);
    Py_END_ALLOW_THREADS;
    return done(&taken);
}

static PyObject *py_end_hash(GIVEN) {
    TAKE("end_hash", "bnnU");
    const int64_t left = ARRAY(0)->size - of[1].number;
    if (ARRAY(0)->size < STRIPE || left < 1 || left > BLOCK_BYTES || of[1].number < 0 ||
        ARRAY(3)->size < LANES)
        return refuse(&taken, "end_hash: the bytes do not end with the last block");
    const uint8_t *end = bytes_of(ARRAY(0)) + ARRAY(0)->size;
    const uint64_t found = end_sums(end, left, of[2].number, words_of(ARRAY(3)));
    return end_with(&taken, PyLong_FromUnsignedLongLong(found));
}

static PyObject *py_xxh3(GIVEN) {
    TAKE("xxh3", "b");
    uint64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = hash_of(bytes_of(ARRAY(0)), ARRAY(0)->size);
    Py_END_ALLOW_THREADS;
    return end_with(&taken, PyLong_FromUnsignedLongLong(found));
}

/* ---- The module ---- */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef METHODS[] = {
    METHOD(ask),
    METHOD(begin_hash),
    METHOD(best_fit),
    METHOD(check_blocks),
    METHOD(copy_spans),
    METHOD(copy_spans_to_parts),
    METHOD(count_scans),
    METHOD(deal_evenly),
    METHOD(count_pieces),
    METHOD(distinct),
    METHOD(end_hash),
    METHOD(expand),
    METHOD(find_bases),
    METHOD(find_dealt),
    METHOD(find_ragged),
    METHOD(find_slots),
    METHOD(find_spans),
    METHOD(fit_labels),
    METHOD(gather),
    METHOD(hash_parts),
    METHOD(map_levels),
    METHOD(measure_batches),
    METHOD(measure_rows),
    METHOD(mix_pixels),
    METHOD(network_tables),
    METHOD(pin),
    METHOD(pin_all),
    METHOD(resample),
    METHOD(sorting_words),
    METHOD(take_pieces),
    METHOD(touch),
    METHOD(unpin),
    METHOD(walk),
    METHOD(write_batches),
    METHOD(write_blocks),
    METHOD(write_rows),
    METHOD(xxh3),
    {NULL, NULL, 0, NULL}};

static int fill(PyObject *module) {
    choose_copy();
    choose_hash();
    if (ARRAY_STRUCT == NULL)
        ARRAY_STRUCT = PyUnicode_InternFromString("__array_struct__");
    if (ARRAY_STRUCT == NULL || PyModule_AddIntConstant(module, "BLOCK_BYTES", BLOCK_BYTES) ||
        PyModule_AddIntConstant(module, "ALIGNMENT", ALIGNMENT) ||
        PyModule_AddIntConstant(module, "OFFSET_BYTES", OFFSET_BYTES) ||
        PyModule_AddStringConstant(module, "SOURCES", SOURCES))
        return -1;
    return 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_loops", "Compiled loops over batches and blocks.", 0, METHODS, SLOTS,
    NULL,                  NULL,     NULL};

PyMODINIT_FUNC PyInit__loops(void) { return PyModuleDef_Init(&MODULE); }
