/* What a large body of JSON has in strings and brackets is passed over, and counted, without being made into objects: a step
 * of the interpreter for each of megabytes of them would keep all streams waiting for seconds. */

static const char *
end_of_string(const char *at, const char *end)
{
    for (;;) {
        const char *quote = memchr(at, '"', (size_t)(end - at)), *stop = quote == NULL ? end : quote;
        const char *escape;
        while (at < stop && (escape = memchr(at, '\\', (size_t)(stop - at))) != NULL) {
            if (end - escape < 2) {
                return escape; /* what it escapes isn't here yet */
            }
            at = escape + 2;
        }
        if (at <= stop) {
            return stop;
        } /* else that quote is escaped */
    }
}

/* Where `held` (a bytearray) is to be looked at from; NULL with an exception where the arguments are not that. */
static const char *
looked_from(PyObject *held, PyObject *number)
{
    if (!PyByteArray_Check(held)) {
        PyErr_SetString(PyExc_TypeError, "what is looked into is a bytearray");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(number), size = PyByteArray_GET_SIZE(held);
    if (at == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (at < 0 || at > size) {
        PyErr_SetString(PyExc_ValueError, "that is not inside of it");
        return NULL;
    }
    return PyByteArray_AS_STRING(held) + at;
}

static PyObject *
string_end(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "string_end(held, at)");
        return NULL;
    }
    const char *at = looked_from(args[0], args[1]);
    if (at == NULL) {
        return NULL;
    }
    const char *begin = PyByteArray_AS_STRING(args[0]);
    return PyLong_FromSsize_t(end_of_string(at, begin + PyByteArray_GET_SIZE(args[0])) - begin);
}

static PyObject *
nested(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "nested(held, at, deep, quoted)");
        return NULL;
    }
    const char *at = looked_from(args[0], args[1]);
    Py_ssize_t deep = at == NULL ? -1 : PyLong_AsSsize_t(args[2]), strings = 0, lists = 0;
    int quoted = at == NULL || PyErr_Occurred() ? -1 : PyObject_IsTrue(args[3]);
    if (quoted < 0) {
        return NULL;
    }
    const char *begin = PyByteArray_AS_STRING(args[0]), *end = begin + PyByteArray_GET_SIZE(args[0]);
    while (deep > 0 && at < end) {
        if (quoted) {
            at = end_of_string(at, end);
            if (at == end || *at != '"') {
                break;
            }
            quoted = 0;
            strings += deep == 1;
            at++;
            continue;
        }
        switch (*at++) {
        case '"':
            quoted = 1;
            break;
        case '[':
            lists += deep == 1;
            deep++;
            break;
        case '{':
            deep++;
            break;
        case ']':
        case '}':
            deep--;
            break;
        default:
            break;
        }
    }
    return Py_BuildValue("nnOnn", (Py_ssize_t)(at - begin), deep, quoted ? Py_True : Py_False, strings, lists);
}
