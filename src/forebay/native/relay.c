/* The usual read of a stream, and what is asked of every request, without the interpreter: `pure.py` says in Python what each function does.
 *
 * Nothing is kept outside of objects, and the types belong to the module's object: every interpreter has its own. Each
 * call holds the GIL from beginning to end, but for what it calls out to. Reads are `bytes`, which can't change;
 * any other object is left to Python. Nothing of `self` that was looked at before a call out is used after it unread.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <sys/socket.h>

#ifndef RELAY_SOURCE
#error "the build names the source's hash: see hatch_build.py"
#endif

#define FRAMES_END 0x1000 /* as in domain/chunks.py */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores SIGPIPE */
#endif

/* -- Takes ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Py_ssize_t events, wire_bytes, report_at;
    Py_ssize_t text_start, shown_bytes;
    Py_ssize_t overlap; /* so many last bytes of `before`, or fewer, might begin `mid` */
    enum { NO_SHAPE = 0, PLAIN, TOLD } shape;
    PyObject *before, *after, *mid, *end; /* bytes; all but `mid` and `end` are there with either shape */
    PyObject *ids;                        /* a bytearray */
    PyObject *write, *report;
    int client;                 /* the socket that `write` writes to; -1: it is written to by nothing else */
    PyObject *unsent, *closing; /* functions that tell how many bytes wait to be sent there, and whether it is being closed */
} Takes;

/* How many bytes of a read of `size` are the head of a chunk that is all of the rest; 0 where it isn't one whole chunk. */
static Py_ssize_t
lead_of(const char *wire, Py_ssize_t size)
{
    static const char digits[] = "0123456789abcdef";
    if (size >= FRAMES_END || size < 6) {
        return 0;
    }
    for (int count = 1; count <= 3; count++) {
        Py_ssize_t body = size - count - 4;
        if (body < 1 || body >> (4 * count) || !(body >> (4 * (count - 1)))) {
            continue;
        }
        for (int at = 0; at < count; at++) {
            if (wire[at] != digits[(body >> (4 * (count - 1 - at))) & 15]) {
                return 0;
            }
        }
        return wire[count] == '\r' && wire[count + 1] == '\n' ? count + 2 : 0;
    }
    return 0;
}

static int
same(const char *at, PyObject *bytes)
{
    return memcmp(at, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)) == 0;
}

/* How much of `data` the client's socket takes right now: nothing where something waits before it. -1: an exception. */
static Py_ssize_t
sent_at_once(Takes *self, const char *data, Py_ssize_t size)
{
    if (self->client < 0) {
        return 0;
    }
    PyObject *ask = self->unsent;
    Py_INCREF(ask);
    PyObject *answer = PyObject_CallNoArgs(ask);
    Py_DECREF(ask);
    if (answer == NULL) {
        return -1;
    }
    int clear = PyObject_Not(answer);
    Py_DECREF(answer);
    if (clear <= 0 || self->client < 0) {
        return clear;
    }
    ask = self->closing;
    Py_INCREF(ask);
    answer = PyObject_CallNoArgs(ask);
    Py_DECREF(ask);
    if (answer == NULL) {
        return -1;
    }
    int open = PyObject_Not(answer);
    Py_DECREF(answer);
    if (open <= 0 || self->client < 0) {
        return open;
    }
    ssize_t count = send(self->client, data, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return count < 0 ? 0 : count; /* whatever the error is, `write` meets it too, and tells of it */
}

/* Counts are changed as Python changes them before it calls out; then a piece is written, and what is due reported. `whole`: the
 * piece as an object, where there is one. 1, or -1: an exception. */
static int
sent(Takes *self, const char *piece, Py_ssize_t size, PyObject *whole, Py_ssize_t wire_bytes)
{
    Py_ssize_t events = ++self->events;
    self->wire_bytes += wire_bytes;
    Py_ssize_t done = sent_at_once(self, piece, size);
    if (done < 0) {
        return -1;
    }
    if (done < size) {
        PyObject *write = self->write;
        if (write == NULL) {
            PyErr_SetString(PyExc_AttributeError, "_write");
            return -1;
        }
        PyObject *rest = whole != NULL && !done ? Py_NewRef(whole) : PyBytes_FromStringAndSize(piece + done, size - done);
        if (rest == NULL) {
            return -1;
        }
        Py_INCREF(write);
        PyObject *answer = PyObject_CallOneArg(write, rest);
        Py_DECREF(write);
        Py_DECREF(rest);
        if (answer == NULL) {
            return -1;
        }
        Py_DECREF(answer);
    }
    if (events >= self->report_at) {
        PyObject *report = self->report;
        if (report == NULL) {
            PyErr_SetString(PyExc_AttributeError, "_report");
            return -1;
        }
        Py_INCREF(report);
        PyObject *answer = PyObject_CallNoArgs(report);
        Py_DECREF(report);
        if (answer == NULL) {
            return -1;
        }
        Py_DECREF(answer);
    }
    return 1;
}

/* Whether a read is the last plain event again, with another text: it is written then. `whole`: the read as an object, or NULL. */
static int
plain_taken(Takes *self, const char *data, Py_ssize_t size, PyObject *whole)
{
    Py_ssize_t begin = lead_of(data, size);
    Py_ssize_t start = begin + self->text_start, stop = size - PyBytes_GET_SIZE(self->after);
    if (!begin || start >= stop || !same(data + begin, self->before) || !same(data + stop, self->after) ||
        memchr(data + start, '"', (size_t)(stop - start)) || memchr(data + start, '\n', (size_t)(stop - start))) {
        return 0;
    }
    return sent(self, data, size, whole, size);
}

static PyObject *
answered(int taken)
{
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyObject *
take_plain(Takes *self, PyObject *wire)
{
    if (!PyBytes_Check(wire) || self->shape != PLAIN) {
        Py_RETURN_FALSE;
    }
    return answered(plain_taken(self, PyBytes_AS_STRING(wire), PyBytes_GET_SIZE(wire), wire));
}

/* The chunk that the client gets is its head, and `before`, the text and `end`: in `out`, which has room for all, or only its size. */
static Py_ssize_t
framed(const Takes *self, const char *text, Py_ssize_t text_bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    Py_ssize_t before = PyBytes_GET_SIZE(self->before), end = PyBytes_GET_SIZE(self->end), body = text_bytes + self->shown_bytes;
    int count = 1;
    while (body >> (4 * count)) {
        count++;
    }
    if (out != NULL) {
        for (int at = count - 1; at >= 0; at--) {
            *out++ = digits[(body >> (4 * at)) & 15];
        }
        *out++ = '\r';
        *out++ = '\n';
        memcpy(out, PyBytes_AS_STRING(self->before), (size_t)before);
        memcpy(out + before, text, (size_t)text_bytes);
        memcpy(out + before + text_bytes, PyBytes_AS_STRING(self->end), (size_t)end);
    }
    return count + 2 + before + text_bytes + end;
}

/* Appends decimal digits and a comma; raises BufferError where somebody looks at the ids, as Python does. */
static int
noted(PyObject *ids, const char *digits, Py_ssize_t count)
{
    Py_ssize_t before = PyByteArray_GET_SIZE(ids);
    if (PyByteArray_Resize(ids, before + count + 1) < 0) {
        return -1;
    }
    char *out = PyByteArray_AS_STRING(ids) + before;
    memcpy(out, digits, (size_t)count);
    out[count] = ',';
    return 0;
}

/* Written from the stack, or from an object where it is large, which none is whose shape was learned from a read as small as this. */
static int
told_sent(Takes *self, const char *text, Py_ssize_t text_bytes, Py_ssize_t wire_bytes)
{
    char out[2 * FRAMES_END];
    Py_ssize_t size = framed(self, text, text_bytes, NULL);
    if (size <= (Py_ssize_t)sizeof out) {
        framed(self, text, text_bytes, out);
        return sent(self, out, size, NULL, wire_bytes);
    }
    PyObject *piece = PyBytes_FromStringAndSize(NULL, size);
    if (piece == NULL) {
        return -1;
    }
    framed(self, text, text_bytes, PyBytes_AS_STRING(piece));
    int taken = sent(self, PyBytes_AS_STRING(piece), size, piece, wire_bytes);
    Py_DECREF(piece);
    return taken;
}

/* The same with another token too, which is noted and taken out. */
static int
told_taken(Takes *self, const char *data, Py_ssize_t size)
{
    Py_ssize_t begin = lead_of(data, size), mid = PyBytes_GET_SIZE(self->mid);
    Py_ssize_t start = begin + self->text_start, stop = size - PyBytes_GET_SIZE(self->after);
    if (!begin || stop - start < mid + 2 || !same(data + begin, self->before) || !same(data + stop, self->after)) {
        return 0;
    }
    const char *text = data + start;
    const char *quote = memchr(text, '"', (size_t)(stop - start)); /* `mid` begins with one, and no text has any */
    Py_ssize_t text_bytes = quote == NULL ? 0 : quote - text, varies = stop - start - text_bytes - mid;
    if (text_bytes == 0 || varies < 1 || !same(quote, self->mid) || memchr(text, '\n', (size_t)text_bytes)) {
        return 0;
    }
    for (Py_ssize_t back = 1; back <= self->overlap; back++) {
        if (same(text - back, self->mid)) {
            return 0; /* the first one is not that behind the text */
        }
    }
    for (Py_ssize_t at = 0; at < varies; at++) {
        char digit = quote[mid + at];
        if (digit < '0' || digit > '9') {
            return 0;
        }
    }
    if (noted(self->ids, quote + mid, varies) < 0) {
        return -1;
    }
    return told_sent(self, text, text_bytes, size);
}

static PyObject *
take_told(Takes *self, PyObject *wire)
{
    if (!PyBytes_Check(wire) || self->shape != TOLD) {
        Py_RETURN_FALSE;
    }
    return answered(told_taken(self, PyBytes_AS_STRING(wire), PyBytes_GET_SIZE(wire)));
}

/* A new reference in the place of an old one. */
static void
put(PyObject **place, PyObject *value)
{
    Py_INCREF(value);
    Py_XSETREF(*place, value);
}

static PyObject *
shape_plain(Takes *self, PyObject *args)
{
    PyObject *before, *after;
    if (!PyArg_ParseTuple(args, "SS:_shape_plain", &before, &after)) {
        return NULL;
    }
    put(&self->before, before);
    put(&self->after, after);
    self->text_start = PyBytes_GET_SIZE(before);
    self->shape = PyBytes_GET_SIZE(after) > 0 ? PLAIN : NO_SHAPE;
    Py_RETURN_NONE;
}

/* So many last bytes of `before` at most begin `mid`; -1 where all of `mid` stands in `before`. */
static Py_ssize_t
overlap_of(PyObject *before, PyObject *mid)
{
    Py_ssize_t size = PyBytes_GET_SIZE(before), width = PyBytes_GET_SIZE(mid);
    const char *data = PyBytes_AS_STRING(before);
    for (Py_ssize_t at = 0; at + width <= size; at++) {
        if (same(data + at, mid)) {
            return -1;
        }
    }
    for (Py_ssize_t back = width - 1 < size ? width - 1 : size; back > 0; back--) {
        if (memcmp(data + size - back, PyBytes_AS_STRING(mid), (size_t)back) == 0) {
            return back;
        }
    }
    return 0;
}

static PyObject *
shape_told(Takes *self, PyObject *args)
{
    PyObject *before, *mid, *after, *end, *ids;
    if (!PyArg_ParseTuple(args, "SSSSY:_shape_told", &before, &mid, &after, &end, &ids)) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(mid) == 0 || PyBytes_AS_STRING(mid)[0] != '"' || PyBytes_GET_SIZE(after) < 2 || PyBytes_GET_SIZE(end) < 2) {
        PyErr_SetString(PyExc_ValueError, "a text ends with its quotation mark, and a chunk with a line's end");
        return NULL;
    }
    put(&self->before, before);
    put(&self->mid, mid);
    put(&self->after, after);
    put(&self->end, end);
    put(&self->ids, ids);
    self->text_start = PyBytes_GET_SIZE(before);
    self->shown_bytes = PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(end) - 2;
    self->overlap = overlap_of(before, mid);
    self->shape = self->overlap < 0 ? NO_SHAPE : TOLD;
    Py_RETURN_NONE;
}

static PyObject *
straight(Takes *self, PyObject *args)
{
    int client;
    PyObject *unsent, *closing;
    if (!PyArg_ParseTuple(args, "iOO:_straight", &client, &unsent, &closing)) {
        return NULL;
    }
    put(&self->unsent, unsent);
    put(&self->closing, closing);
    self->client = client;
    Py_RETURN_NONE;
}

static int
takes_init(Takes *self, PyObject *args, PyObject *named)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, ":Takes", names)) {
        return -1;
    }
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    if (nothing == NULL) {
        return -1;
    }
    put(&self->before, nothing);
    put(&self->after, nothing);
    put(&self->mid, nothing);
    put(&self->end, nothing);
    Py_DECREF(nothing);
    Py_CLEAR(self->ids);
    self->client = -1;
    self->events = self->wire_bytes = self->report_at = self->text_start = self->shown_bytes = 0;
    self->shape = NO_SHAPE;
    return 0;
}

static int
takes_traverse(Takes *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->before);
    Py_VISIT(self->after);
    Py_VISIT(self->mid);
    Py_VISIT(self->end);
    Py_VISIT(self->ids);
    Py_VISIT(self->write);
    Py_VISIT(self->report);
    Py_VISIT(self->unsent);
    Py_VISIT(self->closing);
    return 0;
}

static int
takes_clear(Takes *self)
{
    self->shape = NO_SHAPE;
    self->client = -1;
    Py_CLEAR(self->unsent);
    Py_CLEAR(self->closing);
    Py_CLEAR(self->before);
    Py_CLEAR(self->after);
    Py_CLEAR(self->mid);
    Py_CLEAR(self->end);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->write);
    Py_CLEAR(self->report);
    return 0;
}

static void
takes_dealloc(Takes *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    takes_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef takes_members[] = {
    {"events", T_PYSSIZET, offsetof(Takes, events), 0, NULL},
    {"wire_bytes", T_PYSSIZET, offsetof(Takes, wire_bytes), 0, NULL},
    {"report_at", T_PYSSIZET, offsetof(Takes, report_at), 0, NULL},
    {"_text_start", T_PYSSIZET, offsetof(Takes, text_start), READONLY, NULL},
    {"_shown_bytes", T_PYSSIZET, offsetof(Takes, shown_bytes), READONLY, NULL},
    {"_before", T_OBJECT_EX, offsetof(Takes, before), READONLY, NULL},
    {"_after", T_OBJECT_EX, offsetof(Takes, after), READONLY, NULL},
    {"_mid", T_OBJECT_EX, offsetof(Takes, mid), READONLY, NULL},
    {"_end", T_OBJECT_EX, offsetof(Takes, end), READONLY, NULL},
    {"_ids", T_OBJECT_EX, offsetof(Takes, ids), READONLY, NULL},
    {"_write", T_OBJECT_EX, offsetof(Takes, write), 0, NULL},
    {"_report", T_OBJECT_EX, offsetof(Takes, report), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define METHOD(name) (PyCFunction)(void (*)(void))(name)

static PyMethodDef takes_methods[] = {
    {"take_plain", METHOD(take_plain), METH_O, "A read that is the last plain event again, with another text."},
    {"take_told", METHOD(take_told), METH_O, "The same with another token too, which is noted and taken out."},
    {"_shape_plain", METHOD(shape_plain), METH_VARARGS, "(before, after) a plain event's text."},
    {"_shape_told", METHOD(shape_told), METH_VARARGS, "(before, mid, after, end, ids): see pure.py."},
    {"_straight", METHOD(straight), METH_VARARGS, "(client, unsent, closing): see pure.py."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot takes_slots[] = {
    {Py_tp_doc, "See forebay.native.pure.Takes."},
    {Py_tp_init, takes_init},
    {Py_tp_traverse, takes_traverse},
    {Py_tp_clear, takes_clear},
    {Py_tp_dealloc, takes_dealloc},
    {Py_tp_members, takes_members},
    {Py_tp_methods, takes_methods},
    {0, NULL},
};

static PyType_Spec takes_spec = {
    .name = "forebay.native._relay.Takes",
    .basicsize = sizeof(Takes),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = takes_slots,
};

/* -- Reads ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *taker;    /* None or NULL: nobody */
    PyObject *received; /* the name of what is called with a read that nobody takes; NULL before the first */
} Reads;

static PyObject *
data_received(Reads *self, PyObject *data)
{
    PyObject *taker = self->taker;
    if (taker != NULL && taker != Py_None) {
        Py_INCREF(taker);
        PyObject *taken = PyObject_CallOneArg(taker, data);
        Py_DECREF(taker);
        if (taken == NULL) {
            return NULL;
        }
        int is_taken = PyObject_IsTrue(taken);
        Py_DECREF(taken);
        if (is_taken < 0) {
            return NULL;
        }
        if (is_taken) {
            Py_RETURN_NONE;
        }
    }
    if (self->received == NULL && (self->received = PyUnicode_InternFromString("received")) == NULL) {
        return NULL;
    }
    return PyObject_CallMethodOneArg((PyObject *)self, self->received, data);
}

static PyObject *
received(Reads *Py_UNUSED(self), PyObject *Py_UNUSED(data))
{
    Py_RETURN_NONE;
}

static int
reads_traverse(Reads *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->taker);
    return 0;
}

static int
reads_clear(Reads *self)
{
    Py_CLEAR(self->taker);
    return 0;
}

static void
reads_dealloc(Reads *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reads_clear(self);
    Py_CLEAR(self->received);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef reads_members[] = {
    {"_taker", T_OBJECT, offsetof(Reads, taker), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef reads_methods[] = {
    {"data_received", METHOD(data_received), METH_O, "A read: for the taker, else for `received`."},
    {"received", METHOD(received), METH_O, "What nobody has taken."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reads_slots[] = {
    {Py_tp_doc, "See forebay.native.pure.Reads."},
    {Py_tp_traverse, reads_traverse},
    {Py_tp_clear, reads_clear},
    {Py_tp_dealloc, reads_dealloc},
    {Py_tp_members, reads_members},
    {Py_tp_methods, reads_methods},
    {0, NULL},
};

static PyType_Spec reads_spec = {
    .name = "forebay.native._relay.Reads",
    .basicsize = sizeof(Reads),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = reads_slots,
};

#ifdef __linux__
#include "poller.h"
#endif

/* -- what is asked of one read ------------------------------------------------------------------------------------- */

#define LENGTH_DIGITS_MAX 10

static PyObject *
framed_body(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "framed(read, before, after) takes bytes");
        return NULL;
    }
    Py_ssize_t before = PyBytes_GET_SIZE(args[1]), after = PyBytes_GET_SIZE(args[2]);
    if (!PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) <= before + after) {
        Py_RETURN_NONE;
    }
    const char *read = PyBytes_AS_STRING(args[0]);
    const char *at = read + before, *end = read + PyBytes_GET_SIZE(args[0]);
    if (!same(read, args[1])) {
        Py_RETURN_NONE;
    }
    long long length = 0;
    int digits = 0;
    for (; digits < LENGTH_DIGITS_MAX && at < end && *at >= '0' && *at <= '9'; at++, digits++) {
        length = 10 * length + (*at - '0');
    }
    if (!digits || (digits > 1 && read[before] == '0') || end - at < after || (after && !same(at, args[2]))) {
        Py_RETURN_NONE;
    }
    if (at < end && *at >= '0' && *at <= '9') {
        Py_RETURN_NONE; /* there are more digits than are looked at, or `after` begins with one: it can't be told where they end */
    }
    at += after;
    if (end - at != length) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize(at, (Py_ssize_t)length);
}

static int
stands(const char *at, const char *end, const char *begin, Py_ssize_t before, const char *word)
{
    size_t size = strlen(word);
    return at - begin >= before && (size_t)(end - at) + (size_t)before >= size && memcmp(at - before, word, size) == 0;
}

/* By the one character of each word that text has least of: what a search for the words themselves reads one by one is
 * passed over in strides. */
static PyObject *
names_media(PyObject *Py_UNUSED(module), PyObject *body)
{
    if (!PyBytes_Check(body)) {
        PyErr_SetString(PyExc_TypeError, "names_media(body) takes bytes");
        return NULL;
    }
    const char *begin = PyBytes_AS_STRING(body), *end = begin + PyBytes_GET_SIZE(body);
    for (const char *at = begin; at < end && (at = memchr(at, '_', (size_t)(end - at))) != NULL; at++) {
        if (stands(at, end, begin, 0, "_url\"") || stands(at, end, begin, 5, "input_audio")) {
            Py_RETURN_TRUE;
        }
    }
    for (const char *at = begin; at < end && (at = memchr(at, '6', (size_t)(end - at))) != NULL; at++) {
        if (stands(at, end, begin, 4, "base64")) {
            Py_RETURN_TRUE;
        }
    }
    Py_RETURN_FALSE;
}

#include "scan.h"

static PyMethodDef functions[] = {
    {"framed", METHOD(framed_body), METH_FASTCALL, "See forebay.native.pure.framed."},
    {"names_media", names_media, METH_O, "See forebay.native.pure.names_media."},
    {"nested", METHOD(nested), METH_FASTCALL, "See forebay.native.pure.nested."},
    {"string_end", METHOD(string_end), METH_FASTCALL, "See forebay.native.pure.string_end."},
    {NULL, NULL, 0, NULL},
};

/* -- the module -------------------------------------------------------------------------------------------------- */

static int
added(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

static int
filled(PyObject *module)
{
    if (added(module, &takes_spec) < 0 || added(module, &reads_spec) < 0) {
        return -1;
    }
#ifdef __linux__
    if (added(module, &seat_spec) < 0 || added(module, &poller_spec) < 0) {
        return -1;
    }
#endif
    return PyModule_AddStringConstant(module, "SOURCE", RELAY_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, filled},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "forebay.native._relay",
    .m_doc = "forebay.native.pure in C.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__relay(void)
{
    return PyModuleDef_Init(&definition);
}
