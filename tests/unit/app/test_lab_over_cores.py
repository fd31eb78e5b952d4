"""Tasks over processes: every result once, errors come through, progress rises to the whole."""

import multiprocessing
import os
import signal

import pytest

from forebay.app.lab.over_cores import over_cores
from forebay.domain.errors import BadInput, ForebayError


def squared(task, tell):
    tell(0.5)
    return task * task


def refused(task, tell):
    if task == 1:
        raise BadInput("row 7 is broken")
    return task


def dies(task, tell):
    os._exit(3)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_gives_its_result_once(jobs):
    shares = []
    results = dict(over_cores(squared, [1, 2, 3], jobs, shares.append))
    assert results == {0: 1, 1: 4, 2: 9}
    assert all(0 <= share <= 1 for share in shares)


def test_one_process_tells_how_far_the_whole_is():
    shares = []
    list(over_cores(squared, [1, 2], 1, shares.append))
    assert shares == [0.25, 0.75]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_user_s_comes_through(jobs):
    with pytest.raises(BadInput, match="row 7 is broken"):
        list(over_cores(refused, [0, 1, 2, 3], jobs, lambda share: None))


def test_a_worker_that_dies_is_told():
    with pytest.raises(ForebayError, match="a worker process died"):
        list(over_cores(dies, [0, 1], 2, lambda share: None))


def pauses(task, tell):
    if task:
        signal.pause()
    return task


def test_who_stops_it_does_not_wait_for_what_is_under_way():
    results = over_cores(pauses, [0, 1], 2, lambda share: None)
    assert next(results) == (0, 0)
    workers = multiprocessing.active_children()
    results.close()
    for worker in workers:
        worker.join(30)
    assert not any(worker.is_alive() for worker in workers)
