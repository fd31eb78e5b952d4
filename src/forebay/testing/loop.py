"""An event loop whose time is virtual and whose network is in memory: an hour in seconds, the same seed the same run.

A wait for the next timer is a jump of the clock; "every task waits and nothing is due" is an error instead of a hang;
``create_server`` and ``create_connection`` (and so ``asyncio.start_server`` / ``open_connection``) meet inside the
process. With a seed, the order of what is ready at one instant is shuffled: code that leans on it is found out.
"""

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from forebay.testing.network import MemoryServer, MemoryTransport, Network

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits, and nothing is due to wake any of them."""


class Overrun(Exception):
    """The world's time limit passed before its main task ended."""


class CallbackErrors(Exception):
    """Something raised where nobody was waiting for it."""


class _VirtualSelector(selectors.SelectSelector):
    """Never sleeps: a wait for the next timer becomes a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.limit_s = math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        if timeout > 0:
            self.now_s += timeout
            if self.now_s > self.limit_s:
                raise Overrun(f"not done after {self.limit_s} virtual seconds")
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """The loop itself; ``network`` is its world of sockets, where tests cut, delay and refuse."""

    def __init__(self, shuffle: random.Random | None = None) -> None:
        self._virtual = _VirtualSelector()
        self._shuffle = shuffle
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9
        self.network = Network(self)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def limit(self, limit_s: float) -> None:
        """Raise Overrun once virtual time passes ``limit_s``."""
        self._virtual.limit_s = limit_s

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now_s

    def _run_once(self) -> None:
        if self._shuffle is not None:
            # Private since asyncio offers no other place to reorder what is ready; a test pins it.
            ready = cast("Any", self)._ready
            order = list(ready)
            self._shuffle.shuffle(order)
            ready.clear()
            ready.extend(order)
        cast("Any", super())._run_once()

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen in memory; port 0 takes a free one."""
        return self.network.listen(protocol_factory, str(host or "127.0.0.1"), int(port or 0))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect in memory; raises ConnectionRefusedError where nobody listens."""
        return await self.network.connect(protocol_factory, str(host), int(port))

    def run_in_executor(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """Refused: threads have a time of their own."""
        raise RuntimeError("no threads in a simulated world")

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        """Refused: there are no names in a simulated world."""
        raise RuntimeError("no name look-ups in a simulated world")


def _close(loop: WorldLoop) -> None:
    loop.limit(math.inf)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.network.abort_all()
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_asyncgens())


def run(main: Callable[[], Coroutine[Any, Any, T]], seed: int | None = None, *, time_limit_s: float = 30 * 86_400.0) -> T:
    """Run ``main()`` in a world of its own and return what it returns.

    Raises Deadlock, Overrun, CallbackErrors (an exception in a callback or an unwatched task), or what ``main`` raises.
    With ``seed``, simultaneous events are shuffled and network latency is drawn; without, both are fixed.
    """
    shuffle = None if seed is None else random.Random(f"{seed}/schedule")
    loop = WorldLoop(shuffle)
    loop.limit(time_limit_s)
    if seed is not None:
        loop.network.draw_latency(random.Random(f"{seed}/network"))
    try:
        asyncio.set_event_loop(loop)
        try:
            result = loop.run_until_complete(main())
        except Deadlock:
            waiting = sorted(task.get_name() + " " + str(task.get_coro()) for task in asyncio.all_tasks(loop))
            raise Deadlock("all wait, nothing is due: " + "; ".join(waiting[:10])) from None
        finally:
            errors = list(loop.errors)  # what cancelling the leftovers brings up is not the world's fault
            _close(loop)
        if errors:
            first = errors[0]
            raise CallbackErrors(f"{len(errors)}, the first: {first.get('message')}") from first.get("exception")
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def network() -> Network:
    """The network of the running world."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WorldLoop), "network() is for code inside testing.loop.run"
    return loop.network


__all__ = ["CallbackErrors", "Deadlock", "MemoryServer", "MemoryTransport", "Network", "Overrun", "WorldLoop", "network", "run"]
