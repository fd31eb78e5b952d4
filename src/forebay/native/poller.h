/* Streams read in turns: one call of the interpreter for all that have something, in the place of one for each.
 *
 * A seat is one engine's connection, read here in the place of the event loop, which polls the poller's one descriptor. The usual read
 * goes on to its client without an object being made of it; any other is handed to whoever sits there, as the loop would have.
 * Nobody is told of an end here: the loop reads on, and meets it. Only what `READY_MAX` seats have is looked at in a turn, with one
 * read each, so that the loop's other work waits no longer than that.
 */

#include <sys/epoll.h>
#include <unistd.h>

#define READY_MAX 64
#define READ_BYTES 65536

typedef struct {
    PyObject_HEAD
    int fd;
    Py_ssize_t place;   /* in the poller; -1: in none */
    PyObject *taker;    /* who is asked first; None or NULL: nobody */
    PyObject *received; /* what else was read */
    PyObject *ended;    /* the connection may have ended: the loop must read on */
    PyObject *failed;   /* somebody above has raised this */
} Seat;

static int
seat_init(Seat *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"fd", "received", "ended", "failed", NULL};
    PyObject *received, *ended, *failed;
    if (!PyArg_ParseTupleAndKeywords(args, named, "iOOO:Seat", names, &self->fd, &received, &ended, &failed)) {
        return -1;
    }
    self->place = -1;
    put(&self->received, received);
    put(&self->ended, ended);
    put(&self->failed, failed);
    return 0;
}

static int
seat_traverse(Seat *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->taker);
    Py_VISIT(self->received);
    Py_VISIT(self->ended);
    Py_VISIT(self->failed);
    return 0;
}

static int
seat_clear(Seat *self)
{
    Py_CLEAR(self->taker);
    Py_CLEAR(self->received);
    Py_CLEAR(self->ended);
    Py_CLEAR(self->failed);
    return 0;
}

static void
seat_dealloc(Seat *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    seat_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef seat_members[] = {
    {"taker", T_OBJECT, offsetof(Seat, taker), 0, NULL},
    {"place", T_PYSSIZET, offsetof(Seat, place), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot seat_slots[] = {
    {Py_tp_doc, "(fd, received, ended, failed): one connection of a Poller. See forebay.native.pure.Seat."},
    {Py_tp_init, seat_init},
    {Py_tp_traverse, seat_traverse},
    {Py_tp_clear, seat_clear},
    {Py_tp_dealloc, seat_dealloc},
    {Py_tp_members, seat_members},
    {0, NULL},
};

static PyType_Spec seat_spec = {
    .name = "forebay.native._relay.Seat",
    .basicsize = sizeof(Seat),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = seat_slots,
};

#define IS_SEAT(object) (Py_TYPE(object)->tp_dealloc == (destructor)seat_dealloc)

/* -- Poller ------------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    int epoll;
    Seat **seats; /* by place; NULL where nobody sits */
    uint32_t *turns; /* by place: how often it was given, so that what was ready for the one before isn't read for the next */
    Py_ssize_t places, taken, lowest; /* no place below `lowest` is free */
    char *buffer;
} Poller;

static int
poller_init(Poller *self, PyObject *args, PyObject *named)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, ":Poller", names)) {
        return -1;
    }
    if (self->buffer != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a poller begins once");
        return -1;
    }
    self->epoll = -1;
    self->buffer = PyMem_Malloc(READ_BYTES);
    if (self->buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static int
poller_traverse(Poller *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t place = 0; place < self->places; place++) {
        Py_VISIT(self->seats[place]);
    }
    return 0;
}

static int
poller_clear(Poller *self)
{
    for (Py_ssize_t place = 0; place < self->places; place++) {
        Seat *seat = self->seats[place];
        if (seat != NULL) {
            self->seats[place] = NULL;
            seat->place = -1;
            Py_DECREF(seat);
        }
    }
    self->taken = self->lowest = 0;
    return 0;
}

static void
poller_dealloc(Poller *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    poller_clear(self);
    if (self->buffer != NULL && self->epoll >= 0) {
        close(self->epoll);
    }
    PyMem_Free(self->buffer);
    PyMem_Free(self->seats);
    PyMem_Free(self->turns);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
poller_open(Poller *self)
{
    if (self->buffer == NULL || self->epoll < 0) {
        PyErr_SetString(PyExc_ValueError, "the poller is closed");
        return 0;
    }
    return 1;
}

static PyObject *
poller_fileno(Poller *self, PyObject *Py_UNUSED(nothing))
{
    return poller_open(self) ? PyLong_FromLong(self->epoll) : NULL;
}

static PyObject *
poller_close(Poller *self, PyObject *Py_UNUSED(nothing))
{
    poller_clear(self);
    if (self->buffer != NULL && self->epoll >= 0) {
        close(self->epoll);
        self->epoll = -1;
    }
    Py_RETURN_NONE;
}

static int
poller_grown(Poller *self)
{
    Py_ssize_t places = self->places ? 2 * self->places : 64;
    Seat **seats = PyMem_Realloc(self->seats, (size_t)places * sizeof *seats);
    if (seats == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    self->seats = seats;
    uint32_t *turns = PyMem_Realloc(self->turns, (size_t)places * sizeof *turns);
    if (turns == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    self->turns = turns;
    memset(seats + self->places, 0, (size_t)(places - self->places) * sizeof *seats);
    memset(turns + self->places, 0, (size_t)(places - self->places) * sizeof *turns);
    self->places = places;
    return 1;
}

static PyObject *
poller_add(Poller *self, PyObject *object)
{
    if (!poller_open(self)) {
        return NULL;
    }
    if (!IS_SEAT(object)) {
        PyErr_SetString(PyExc_TypeError, "a poller has seats");
        return NULL;
    }
    Seat *seat = (Seat *)object;
    if (seat->place >= 0) {
        PyErr_SetString(PyExc_ValueError, "it sits somewhere already");
        return NULL;
    }
    if (self->taken == self->places && !poller_grown(self)) {
        return NULL;
    }
    Py_ssize_t place = self->lowest;
    while (self->seats[place] != NULL) {
        place++;
    }
    struct epoll_event wanted = {.events = EPOLLIN};
    wanted.data.u64 = (uint64_t)(uint32_t)place | (uint64_t)(self->turns[place] + 1) << 32;
    if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, seat->fd, &wanted) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->turns[place]++;
    self->seats[place] = (Seat *)Py_NewRef(seat);
    seat->place = place;
    self->taken++;
    self->lowest = place + 1;
    Py_RETURN_NONE;
}

static PyObject *
poller_remove(Poller *self, PyObject *object)
{
    if (!IS_SEAT(object)) {
        PyErr_SetString(PyExc_TypeError, "a poller has seats");
        return NULL;
    }
    Seat *seat = (Seat *)object;
    Py_ssize_t place = seat->place;
    if (place < 0 || place >= self->places || self->seats[place] != seat) {
        Py_RETURN_NONE;
    }
    struct epoll_event unused = {0};
    epoll_ctl(self->epoll, EPOLL_CTL_DEL, seat->fd, &unused); /* fails where it was closed, which took it out */
    self->seats[place] = NULL;
    seat->place = -1;
    self->taken--;
    if (place < self->lowest) {
        self->lowest = place;
    }
    Py_DECREF(seat);
    Py_RETURN_NONE;
}

/* Whether a stream takes it without an object being made of it; -1: an exception. `others`: it is somebody else's to take. */
static int
seat_takes(Seat *seat, const char *data, Py_ssize_t size, int *others)
{
    PyObject *taker = seat->taker;
    *others = taker != NULL && taker != Py_None;
    if (!*others || !PyCFunction_Check(taker)) {
        return 0;
    }
    PyCFunction function = PyCFunction_GET_FUNCTION(taker);
    Takes *takes = (Takes *)PyCFunction_GET_SELF(taker);
    int taken = 0;
    Py_INCREF(taker);
    if (function == (PyCFunction)(void (*)(void))take_told) {
        *others = 0;
        taken = takes->shape == TOLD ? told_taken(takes, data, size) : 0;
    } else if (function == (PyCFunction)(void (*)(void))take_plain) {
        *others = 0;
        taken = takes->shape == PLAIN ? plain_taken(takes, data, size, NULL) : 0;
    }
    Py_DECREF(taker);
    return taken;
}

static PyObject *
seat_told(PyObject *who, PyObject *data)
{
    Py_INCREF(who);
    PyObject *answer = data == NULL ? PyObject_CallNoArgs(who) : PyObject_CallOneArg(who, data);
    Py_DECREF(who);
    return answer;
}

/* What no stream took: for another taker, where there is one, and for who sits there. A new reference. */
static PyObject *
seat_handed(Seat *seat, const char *read, Py_ssize_t size, int others)
{
    PyObject *data = PyBytes_FromStringAndSize(read, size);
    if (data == NULL) {
        return NULL;
    }
    int taken = 0;
    PyObject *answer = NULL;
    if (others && (answer = seat_told(seat->taker, data)) != NULL) {
        taken = PyObject_IsTrue(answer);
        if (!taken) {
            Py_CLEAR(answer);
        }
    }
    if (!taken && !PyErr_Occurred()) {
        answer = seat_told(seat->received, data);
    } else if (taken < 0) {
        Py_CLEAR(answer);
    }
    Py_DECREF(data);
    return answer;
}

/* One read for one seat; 0, or -1: an exception. */
static int
seat_served(Poller *self, Seat *seat)
{
    ssize_t size = recv(seat->fd, self->buffer, READ_BYTES, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    PyObject *answer;
    if (size <= 0) {
        answer = seat_told(seat->ended, NULL);
    } else {
        int others, taken = seat_takes(seat, self->buffer, size, &others);
        if (taken) {
            return taken < 0 ? -1 : 0;
        }
        answer = seat_handed(seat, self->buffer, size, others);
    }
    if (answer == NULL) {
        return -1;
    }
    Py_DECREF(answer);
    return 0;
}

/* Whoever sits there hears of an exception; what comes of that is nobody's. */
static void
seat_failed(Seat *seat)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    PyObject *failed = Py_NewRef(seat->failed);
    PyObject *answer = PyObject_CallOneArg(failed, error);
    if (answer == NULL) {
        PyErr_WriteUnraisable(failed);
    }
    Py_DECREF(failed);
    Py_XDECREF(answer);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

static PyObject *
poller_turn(Poller *self, PyObject *Py_UNUSED(nothing))
{
    if (!poller_open(self)) {
        return NULL;
    }
    struct epoll_event ready[READY_MAX];
    int count = epoll_wait(self->epoll, ready, READY_MAX, 0);
    if (count < 0 && errno != EINTR) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    for (int each = 0; each < count; each++) {
        Py_ssize_t place = (Py_ssize_t)(ready[each].data.u64 & UINT32_MAX);
        Seat *seat = place < self->places ? self->seats[place] : NULL;
        if (seat == NULL || self->turns[place] != (uint32_t)(ready[each].data.u64 >> 32)) {
            continue; /* it has gone since this turn began */
        }
        Py_INCREF(seat);
        if (seat_served(self, seat) < 0) {
            if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) || PyErr_ExceptionMatches(PyExc_SystemExit)) {
                Py_DECREF(seat);
                return NULL;
            }
            seat_failed(seat);
        }
        Py_DECREF(seat);
    }
    Py_RETURN_NONE;
}

static PyMemberDef poller_members[] = {
    {"seated", T_PYSSIZET, offsetof(Poller, taken), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef poller_methods[] = {
    {"fileno", METHOD(poller_fileno), METH_NOARGS, "What the event loop watches."},
    {"add", METHOD(poller_add), METH_O, "Read for this seat from now on."},
    {"remove", METHOD(poller_remove), METH_O, "Read for it no more; nothing where it doesn't sit here."},
    {"turn", METHOD(poller_turn), METH_NOARGS, "One read for each seat that has something."},
    {"close", METHOD(poller_close), METH_NOARGS, "Read for nobody any more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot poller_slots[] = {
    {Py_tp_doc, "See forebay.native.pure.Poller."},
    {Py_tp_init, poller_init},
    {Py_tp_traverse, poller_traverse},
    {Py_tp_clear, poller_clear},
    {Py_tp_dealloc, poller_dealloc},
    {Py_tp_members, poller_members},
    {Py_tp_methods, poller_methods},
    {0, NULL},
};

static PyType_Spec poller_spec = {
    .name = "forebay.native._relay.Poller",
    .basicsize = sizeof(Poller),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = poller_slots,
};
