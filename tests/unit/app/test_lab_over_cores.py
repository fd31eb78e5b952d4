"""Tasks over processes: every result once, errors come through, progress rises to the whole."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


STOPPED = """
import multiprocessing, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's tests are deaf to it
sys.path.insert(0, {folder!r})
from test_lab_over_cores import pauses
from forebay.app.lab.over_cores import over_cores
def tell(share):
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
if __name__ == "__main__":
    list(over_cores(pauses, [1, 1], 2, tell))
"""


def stopped(tmp_path, how):
    """What two busy workers' parent leaves when it is stopped by ``how``: exit code, stderr, and whether the workers still run."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED.format(folder=str(Path(__file__).parent)))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    try:
        how(process)
        _, err = process.communicate(timeout=20)
        deadline_s = time.monotonic() + 10
        while any(map(alive, workers)) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return process.returncode, err, [pid for pid in workers if alive(pid)]
    finally:
        process.kill()
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_end_with_their_parent_however_that_ends(tmp_path):
    """A comparison that was killed left its workers at their work, and then waiting for more, for ever."""
    code, _, left = stopped(tmp_path, lambda process: process.kill())
    assert (code, left) == (-signal.SIGKILL, [])


def test_ctrl_c_reaches_everybody_and_only_the_parent_speaks(tmp_path):
    code, err, left = stopped(tmp_path, lambda process: os.killpg(process.pid, signal.SIGINT))
    assert code in (1, 130, -signal.SIGINT)
    assert left == []
    assert err.count("Traceback") == 1, "the parent's own, which the verb turns into a line"


def test_who_stops_it_does_not_wait_for_what_is_under_way():
    results = over_cores(pauses, [0, 1], 2, lambda share: None)
    assert next(results) == (0, 0)
    workers = multiprocessing.active_children()
    results.close()
    for worker in workers:
        worker.join(30)
    assert not any(worker.is_alive() for worker in workers)
