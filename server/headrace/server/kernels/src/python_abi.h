/* What the loops use of Python's stable ABI, so that compiling them needs no headers of Python.
 *
 * These declarations cannot change before Python 4: that is what "stable ABI" promises. They hold
 * for CPython 3.11 and later with its global lock, in builds without reference tracing.
 *
 * Source: "C API and ABI Stability", and "Contents of Limited API", Python's documentation.
 */

#ifndef HEADRACE_PYTHON_ABI_H
#define HEADRACE_PYTHON_ABI_H

#include <stddef.h>

typedef ptrdiff_t Py_ssize_t;

typedef struct _object PyObject;
struct _object {
    Py_ssize_t references;
    PyObject *type;
};

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);

typedef struct {
    const char *name;
    PyCFunction function;
    int flags;
    const char *doc;
} PyMethodDef;

typedef struct {
    int slot;
    void *value;
} PyModuleDef_Slot;

typedef struct {
    PyObject object;
    PyObject *(*initialize)(void);
    Py_ssize_t index;
    PyObject *copy;
    const char *name;
    const char *doc;
    Py_ssize_t size;
    PyMethodDef *methods;
    PyModuleDef_Slot *slots;
    void *traverse;
    void *clear;
    void *free;
} PyModuleDef;

#define PyModuleDef_HEAD_INIT {1, NULL}, NULL, 0, NULL
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
enum { METH_FASTCALL = 0x80, Py_mod_exec = 2 };

extern PyObject _Py_NoneStruct, *PyExc_TypeError, *PyExc_ValueError;
#define Py_None (&_Py_NoneStruct)

PyObject *Py_NewRef(PyObject *);
void Py_DecRef(PyObject *); /* does nothing for NULL */

PyObject *PyBool_FromLong(long);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
char *PyBytes_AsString(PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *);
PyObject *PyErr_Format(PyObject *, const char *, ...);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *, const char *);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
PyObject *PyModuleDef_Init(PyModuleDef *);
int PyModule_AddIntConstant(PyObject *, const char *, long);
int PyModule_AddStringConstant(PyObject *, const char *, const char *);
PyObject *PyNumber_Index(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *Py_BuildValue(const char *, ...);

typedef struct _ts PyThreadState;
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
#define Py_BEGIN_ALLOW_THREADS                                                                     \
    {                                                                                              \
        PyThreadState *saved = PyEval_SaveThread()
#define Py_END_ALLOW_THREADS                                                                       \
    PyEval_RestoreThread(saved);                                                                   \
    }

#endif
