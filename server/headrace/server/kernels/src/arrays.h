/* NumPy arrays as the loops see them, taken from Python's arguments and checked.
 *
 * Arrays are read through `__array_struct__`, the array interface that NumPy documents, so neither
 * NumPy's headers nor its version matter to the compiler. It takes 0.1 us per array; the buffer
 * protocol takes 0.3.
 */

#ifndef HEADRACE_ARRAYS_H
#define HEADRACE_ARRAYS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "python_abi.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2_PATH 1
#define WITH_AVX2 __attribute__((target("avx2")))
#define WITH_F16C __attribute__((target("avx2,f16c")))
#else
#define HAS_AVX2_PATH 0
#endif

/* For loops that compilers vectorise: compiled twice if the loader can choose a version. */
#if HAS_AVX2_PATH && defined(__GLIBC__)
#define TWICE __attribute__((target_clones("avx2", "default")))
#else
#define TWICE
#endif

#define MOST_ARGUMENTS 16
#define MOST_DIMENSIONS 3

/* The content of the capsule in `__array_struct__`.
 *
 * Source: "The array interface protocol", NumPy Reference.
 */
typedef struct {
    int two;
    int dimensions;
    char kind;
    int item_bytes;
    int flags;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    void *data;
    PyObject *description;
} array_struct;

enum { IS_CONTIGUOUS = 0x1, IS_ALIGNED = 0x100, IS_NATIVE = 0x200, IS_WRITABLE = 0x400 };

/* An array of `size` items. */
typedef struct {
    void *data;
    int64_t size;
    int64_t shape[MOST_DIMENSIONS];
} array;

/* One argument: an array, or a number. */
typedef union {
    array array;
    int64_t number;
    uint64_t word;
} argument;

typedef struct {
    argument of[MOST_ARGUMENTS];
    PyObject *held[MOST_ARGUMENTS]; /* keeps the array's structure alive, or NULL */
    int count;
} arguments;

static PyObject *ARRAY_STRUCT; /* the attribute's name */

/* A kind of array: its letter, a capital for arrays that are written to. */
typedef struct {
    char letter;
    char kind;
    int item_bytes;
    int dimensions;
    const char *name;
} array_kind;

static const array_kind KINDS[] = {
    {'b', 'u', 1, 1, "uint8 of 1 dimension"},  {'l', 'i', 8, 1, "int64 of 1 dimension"},
    {'i', 'i', 4, 1, "int32 of 1 dimension"},  {'m', 'i', 8, 2, "int64 of 2 dimensions"},
    {'c', 'i', 8, 3, "int64 of 3 dimensions"}, {'h', 'u', 2, 1, "uint16 of 1 dimension"},
    {'w', 'u', 2, 2, "uint16 of 2 dimensions"}, {'u', 'u', 8, 1, "uint64 of 1 dimension"},
    {'d', 'f', 8, 1, "float64 of 1 dimension"},
};

static const array_kind *kind_of(char letter) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (KINDS[i].letter == (letter | 0x20))
            return &KINDS[i];
    return NULL;
}

static bool take_array(const char *function, int place, char letter, PyObject *given, array *into,
                       PyObject **held) {
    const array_kind *wanted = kind_of(letter);
    const bool is_written = letter != wanted->letter;
    const int flags = IS_CONTIGUOUS | IS_ALIGNED | IS_NATIVE | (is_written ? IS_WRITABLE : 0);
    PyObject *capsule = PyObject_GetAttr(given, ARRAY_STRUCT);
    if (capsule == NULL)
        return false;
    const array_struct *found = PyCapsule_GetPointer(capsule, NULL);
    if (found == NULL) {
        Py_DecRef(capsule);
        return false;
    }
    if (found->two != 2 || found->dimensions != wanted->dimensions ||
        found->kind != wanted->kind || found->item_bytes != wanted->item_bytes ||
        (found->flags & flags) != flags) {
        PyErr_Format(PyExc_TypeError, "%s: argument %d is not a contiguous%s array of %s", function,
                     place, is_written ? ", writable" : "", wanted->name);
        Py_DecRef(capsule);
        return false;
    }
    into->data = found->data;
    into->size = 1;
    for (int i = 0; i < found->dimensions; i++) {
        into->shape[i] = found->shape[i];
        into->size *= found->shape[i];
    }
    *held = capsule;
    return true;
}

static void give_back(arguments *taken) {
    for (int i = 0; i < taken->count; i++)
        Py_DecRef(taken->held[i]);
}

/* Parse the arguments of a call.
 *
 * `letters` has a letter for each argument: one of `KINDS` for an array, `n` for a signed and `k`
 * for an unsigned 64-bit number.
 */
static bool take(const char *function, const char *letters, PyObject *const *given,
                 Py_ssize_t count, arguments *into) {
    into->count = 0;
    if ((size_t)count != strlen(letters)) {
        PyErr_Format(PyExc_TypeError, "%s takes %d arguments and was given %d", function,
                     (int)strlen(letters), (int)count);
        return false;
    }
    for (int i = 0; i < (int)count; i++) {
        PyObject **held = &into->held[i];
        *held = NULL;
        into->count = i + 1;
        if (letters[i] == 'n') {
            into->of[i].number = PyLong_AsLongLong(given[i]);
        } else if (letters[i] == 'k') {
            PyObject *whole = PyNumber_Index(given[i]);
            into->of[i].word = whole == NULL ? 0 : PyLong_AsUnsignedLongLong(whole);
            Py_DecRef(whole);
        } else if (!take_array(function, i, letters[i], given[i], &into->of[i].array, held)) {
            give_back(into);
            return false;
        }
        if ((letters[i] == 'n' || letters[i] == 'k') && PyErr_Occurred()) {
            give_back(into);
            return false;
        }
    }
    return true;
}

static inline const uint8_t *bytes_of(const array *of) { return of->data; }
static inline uint8_t *bytes_to(const array *of) { return of->data; }
static inline int64_t *ints_of(const array *of) { return of->data; }
static inline int32_t *slots_of(const array *of) { return of->data; }
static inline uint16_t *halves_of(const array *of) { return of->data; }
static inline double *doubles_of(const array *of) { return of->data; }
static inline uint64_t *words_of(const array *of) { return of->data; }

static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
static inline int64_t most(int64_t one, int64_t other) { return one > other ? one : other; }

#endif
