"""The owner's side: each worker is a child process, and what ends is started again after a growing delay."""

import asyncio
import socket
import subprocess
from collections.abc import Callable, Sequence

from forebay.adapters.crew.packets import Packets, close_files, pair
from forebay.ports.crew import Overseer

BACKOFF_S_MIN = 0.25
BACKOFF_S_MAX = 10.0
HEALTHY_AFTER_S = 30.0
"""Who has lived for so long is started again at once when it ends, as the first time."""
END_S = 2.0
"""A worker has so long to end by itself when its owner closes, and then so long to be gone once it is killed."""
REAP_S = 0.1
"""What has closed its end of the line is dying: for so long, at most, nobody is told, since its end says why."""
POLL_S = 0.01
"""Between two looks at it: the owner has streams to serve, and waits for no process."""


def available() -> bool:
    """Whether this system keeps packets apart between two processes."""
    try:
        ends = pair()
    except (OSError, AttributeError):
        return False
    for end in ends:
        end.close()
    return True


class ProcessCrew:
    """`ports.crew.Crew`: ``count`` processes of ``command``, which gets ``--fd N``, its end of the line."""

    def __init__(self, count: int, command: Sequence[str], say: Callable[[str], None]) -> None:
        """``say``: words for whoever reads the log, where one can't be started."""
        self.closed = False
        self._workers = [_Place(f"worker-{number}", command, self, say) for number in range(count)]
        self.overseer: Overseer | None = None

    def start(self, overseer: Overseer) -> None:
        """See `ports.crew.Crew`."""
        self.overseer = overseer
        for worker in self._workers:
            worker.start()

    def reclaim(self, transport: asyncio.Transport) -> None:
        """See `ports.crew.Crew`."""
        if not transport.is_closing():
            transport.resume_reading()

    def pids(self) -> list[int]:
        """Of those that run."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    async def close(self) -> None:
        """See `ports.crew.Crew`."""
        self.closed = True
        for worker in self._workers:
            worker.close()
        deadline_s = asyncio.get_running_loop().time() + END_S
        for worker in self._workers:
            await worker.ended(deadline_s)


class _Line:
    """`ports.crew.Line`: one process, from its start to its end."""

    def __init__(self, name: str, end: socket.socket, place: "_Place") -> None:
        self.name = name
        self._place = place
        self._packets = Packets(end, self._told, self._ended)

    def lend(self, packet: bytes, client: asyncio.Transport, engine: asyncio.Transport) -> bool:
        """See `ports.crew.Line`."""
        files = [transport.get_extra_info("socket").fileno() for transport in (client, engine)]
        client.pause_reading()
        engine.pause_reading()
        if self._packets.offer(packet, files):
            return True
        client.resume_reading()
        engine.resume_reading()
        return False

    def send(self, packet: bytes) -> bool:
        """See `ports.crew.Line`."""
        return self._packets.post(packet)

    def kill(self) -> None:
        """See `ports.crew.Line`."""
        self._place.kill()

    def close(self) -> None:
        """Hang up: the process ends by that."""
        self._packets.close()

    def _told(self, packet: bytes, files: list[int]) -> None:
        close_files(files)
        overseer = self._place.crew.overseer
        if overseer is not None:
            overseer.told(self, packet)

    def _ended(self) -> None:
        self._place.lost(self)


class _Place:
    """One of the crew's places: the process that fills it, and the next one when that ends."""

    def __init__(self, name: str, command: Sequence[str], crew: ProcessCrew, say: Callable[[str], None]) -> None:
        self.crew = crew
        self.process: subprocess.Popen[bytes] | None = None
        self._name = name
        self._command = command
        self._say = say
        self._line: _Line | None = None
        self._backoff_s = BACKOFF_S_MIN
        self._started_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unreaped: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start a process. Where the machine refuses, that counts as one that ended at once."""
        loop = asyncio.get_running_loop()
        self._timer = None
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        self._started_s = loop.time()
        try:
            own, other = pair()
        except OSError as error:
            self._say(f"{self._name} can't be started: {error}")
            self._again()
            return
        with other:
            try:
                # In a session of its own: an interrupt at the terminal is the owner's to hear.
                self.process = subprocess.Popen(
                    [*self._command, "--fd", str(other.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                own.close()
                self._say(f"{self._name} can't be started: {error}")
                self._again()
                return
        self._line = _Line(self._name, own, self)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()

    def lost(self, line: _Line) -> None:
        """Its end of the line has closed: whatever it still does, it does for nobody."""
        process, self.process, self._line = self.process, None, None
        if process is not None:
            process.kill()
            self._unreaped.append(process)
        self._reap(line, process, asyncio.get_running_loop().time() + REAP_S)

    def _reap(self, line: _Line, process: subprocess.Popen[bytes] | None, until_s: float) -> None:
        """Tell of its end, and begin again, once it is known why it ended, or it takes too long to."""
        loop = asyncio.get_running_loop()
        code = None if process is None else process.poll()
        if process is not None and code is None and loop.time() < until_s:
            self._timer = loop.call_later(POLL_S, self._reap, line, process, until_s)
            return
        why = "ended" if code is None else f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if loop.time() - self._started_s > HEALTHY_AFTER_S:
            self._backoff_s = BACKOFF_S_MIN
        self._again()
        overseer = self.crew.overseer
        if overseer is not None:
            overseer.lost(line, why)

    def _again(self) -> None:
        if not self.crew.closed:
            self._timer = asyncio.get_running_loop().call_later(self._backoff_s, self.start)
            self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)

    def close(self) -> None:
        """Start no more, and hang up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line is not None:
            self._line.close()
            self._line = None

    async def ended(self, deadline_s: float) -> None:
        """Return when its process has, and those before it that took long to; or when not even a kill ends them."""
        processes, self._unreaped = [*self._unreaped, *([self.process] if self.process is not None else [])], []
        self.process = None
        loop = asyncio.get_running_loop()
        while processes := [process for process in processes if process.poll() is None]:
            if loop.time() > deadline_s + END_S:
                return
            if loop.time() > deadline_s:
                for process in processes:
                    process.kill()
            await asyncio.sleep(POLL_S)
