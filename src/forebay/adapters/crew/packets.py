"""Packets, with open files beside them, over one end of a socket pair that keeps packets apart (Linux: ``SOCK_SEQPACKET``).

A packet is sent whole or not at all, and the end of the other process is the end of the socket.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from forebay.ports.crew import PACKET_BYTES_MAX

FILES = 2
"""Beside one packet."""
READS_MAX = 64
"""Packets in one turn of the loop."""
POSTS_MAX = 65_536
"""Packets that wait for the other side to take some; more, and it is taken for dead…"""
POSTS_BYTES_MAX = 64 * 2**20
"""…and so it is where they are more than this in all: as much as 5,000 streams have that come back with what was read of them."""
SEND_BUFFER_BYTES = 1024 * 1024
"""Asked of the kernel, which may give less."""
_FILES_BYTES = socket.CMSG_SPACE(FILES * array.array("i").itemsize)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends. Raises OSError where there are none such."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ends


class Packets:
    """One end. ``told`` gets each packet with its files, which are then the taker's to close; ``ended`` is called once."""

    def __init__(self, end: socket.socket, told: Callable[[bytes, list[int]], None], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._told, self._ended = told, ended
        self._posts: deque[bytes] = deque()
        self._posts_bytes = 0
        self._open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._readable)

    def offer(self, packet: bytes, files: Sequence[int]) -> bool:
        """Send it now, with ``files``; False where it would have to wait."""
        if not self._open or self._posts:
            return False
        try:
            self._end.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        except OSError:  # it is full, or it is the end, which is heard of by itself
            return False
        return True

    def post(self, packet: bytes) -> bool:
        """Send it, after those that wait; False where too many do, or it is the end."""
        if not self._open or len(self._posts) >= POSTS_MAX or self._posts_bytes + len(packet) > POSTS_BYTES_MAX:
            return False
        if not self._posts:
            try:
                self._end.send(packet)
            except BlockingIOError:
                self._loop.add_writer(self._end.fileno(), self._writable)
            except OSError:
                return False
            else:
                return True
        self._posts.append(packet)
        self._posts_bytes += len(packet)
        return True

    def close(self) -> None:
        """Hear and say no more."""
        if self._open:
            self._open = False
            self._posts.clear()
            self._posts_bytes = 0
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()

    def _writable(self) -> None:
        while self._posts:
            try:
                self._end.send(self._posts[0])
            except BlockingIOError:
                return
            except OSError:
                break
            self._posts_bytes -= len(self._posts.popleft())
        self._loop.remove_writer(self._end.fileno())

    def _readable(self) -> None:
        for _ in range(READS_MAX):
            try:
                packet, beside, _, _ = self._end.recvmsg(PACKET_BYTES_MAX, _FILES_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
                beside = []
            if not packet:
                self.close()
                self._ended()
                return
            files = array.array("i")
            for level, kind, data in beside:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    files.frombytes(data[: len(data) - len(data) % files.itemsize])
            self._told(packet, list(files))
            if not self._open:
                return


def close_files(files: Sequence[int]) -> None:
    """Nobody wants them."""
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
