"""A worker's side: connections come as open files, and become transports of this process's loop."""

import asyncio
import socket
from collections.abc import Callable

from forebay.adapters.crew.packets import FILES, Packets, close_files
from forebay.ports.crew import Helper, Owner


class _Line:
    """`ports.crew.Owner`."""

    def __init__(self, end: socket.socket, told: Callable[[bytes, list[int]], None], over: asyncio.Event) -> None:
        self._over = over
        self._packets = Packets(end, told, over.set)

    def send(self, packet: bytes) -> None:
        """See `ports.crew.Owner`. An owner that takes nothing for so long is none."""
        if not self._packets.post(packet):
            self._over.set()

    def close(self) -> None:
        """Say no more."""
        self._packets.close()


class _Ends:
    """`ports.crew.Ends`: two open files."""

    def __init__(self, files: list[int], tasks: set[asyncio.Task[None]]) -> None:
        self._files = files
        self._tasks = tasks

    def open(self, client: asyncio.Protocol, engine: asyncio.Protocol) -> None:
        """See `ports.crew.Ends`."""
        task = asyncio.get_running_loop().create_task(self._open(client, engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, client: asyncio.Protocol, engine: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        for file, protocol in zip(self._files, (client, engine), strict=True):
            try:
                opened = socket.socket(fileno=file)
                opened.setblocking(False)
                await loop.create_connection(lambda protocol=protocol: protocol, sock=opened)  # type: ignore[misc]
            except OSError as error:
                protocol.connection_lost(error)


async def serve(end: socket.socket, made: Callable[[Owner], Helper]) -> None:
    """Be a worker of whoever holds the other ``end``, until that ends."""
    over = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def told(packet: bytes, files: list[int]) -> None:
        if len(files) == FILES:
            helper.told(packet, _Ends(files, tasks))
        else:
            close_files(files)
            helper.told(packet, None)

    line = _Line(end, told, over)
    helper = made(line)
    await over.wait()
    helper.close()
    line.close()
