"""Runs over the cores: one task is one policy on one seed, so that memory is what the processes under way need, however many there are.

Results come back as they are done, and all along each task tells how far it is. With one process nothing is forked at all.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, TypeVar

from forebay.domain.errors import ForebayError

JOBS_MAX = 256
LOOK_S = 0.25
"""How often progress is looked at."""
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""Ctrl-C, and the window that is closed."""
T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[float], None]
Work = Callable[[T, Tell], R]

_shares: MutableSequence[float] = []
"""In a worker: how far each task is, shared with the parent."""


def cores() -> int:
    """How many this process may use."""
    return min(JOBS_MAX, len(os.sched_getaffinity(0)))


def over_cores(work: Work[T, R], tasks: Sequence[T], jobs: int, tell: Tell) -> Iterator[tuple[int, R]]:
    """``(place in tasks, result)`` of every task, in the order in which they are done; ``work`` and tasks can be pickled.

    ``work`` gets a task and whom to tell the fraction of it that is done; ``tell`` is told the fraction of all. What ``work``
    raises is raised here, and what has not begun is not begun any more. A worker that dies is a ForebayError.
    """
    jobs = max(1, min(jobs, len(tasks), JOBS_MAX))
    if jobs == 1:
        for place, task in enumerate(tasks):
            yield place, work(task, lambda share, place=place: tell((place + share) / len(tasks)))  # type: ignore[misc]
        return
    # A forked child of a process with threads (a progress bar's) may hang on a lock that nobody in it will release.
    context = multiprocessing.get_context("forkserver")
    _begin_server()
    shares = context.Array("d", len(tasks), lock=False)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(shares,))
    try:
        for place, result in _done(pool, work, tasks, jobs, lambda: tell(sum(shares) / len(tasks))):
            shares[place] = 1.0
            yield place, result
    except BrokenProcessPool:
        raise ForebayError("a worker process died; if memory ran out, try again with --jobs 1") from None
    except BaseException:
        # Whoever stops this (Ctrl-C, a task's error) does not want to wait for the tasks under way.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _done(pool: ProcessPoolExecutor, work: Work[T, R], tasks: Sequence[T], jobs: int, look: Callable[[], None]) -> Iterator[tuple[int, R]]:
    """A task is handed over when a process is free for it: queued ones would begin even after an error."""
    running: dict[Future[R], int] = {}
    following = iter(enumerate(tasks))
    while True:
        while len(running) < jobs and (task := next(following, None)) is not None:
            running[pool.submit(_work, work, task[0], task[1])] = task[0]
        if not running:
            return
        done, _ = wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        look()
        for future in done:
            yield running.pop(future), future.result()


def _begin_server() -> None:
    """Start the process that forks workers, if none runs, deaf to what reaches every process of a terminal.

    Its workers are deaf as well, from their first moment: only the parent speaks, and it ends them.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only there may it be said who hears what
    before = {number: signal.signal(number, signal.SIG_IGN) for number in OF_A_TERMINAL}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(shares: Any) -> None:
    """In a worker: it ends with its parent, however that ends (``kill -9`` too), and not on Ctrl-C."""
    for number in OF_A_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    globals()["_shares"] = shares


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(work: Work[T, R], place: int, task: T) -> R:
    def tell(share: float) -> None:
        _shares[place] = share

    return work(task, tell)
