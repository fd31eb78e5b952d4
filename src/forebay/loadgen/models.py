"""Ask the target what it serves, before anything is sent: a wrong address or key ends the run at once, in words."""

import asyncio

import msgspec

from forebay.domain.errors import ForebayError
from forebay.loadgen.http import Client, Connection, Outcome, Target

ANSWER_BYTES_MAX = 4 * 2**20
PATIENCE_REAL_S = 30.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Fetch:
    """An Exchange of `loadgen.http` that gathers a small answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.done = False
        self.connection: Connection | None = None
        self.status = 0
        self.answer = b""
        self.over: asyncio.Future[tuple[Outcome, str]] = asyncio.get_running_loop().create_future()

    def sent(self) -> None:
        """Nothing to measure."""

    def head(self, status: int, _headers: list[tuple[bytes, bytes]], /) -> None:
        """Keep the status."""
        self.status = status

    def body(self, body: bytes) -> None:
        """Gather, within the bound."""
        if len(self.answer) < ANSWER_BYTES_MAX:
            self.answer += body

    def end(self, outcome: Outcome, detail: str) -> None:
        """Wake who waits."""
        if not self.over.done():
            self.over.set_result((outcome, detail))


async def first_model(client: Client, target: Target, key: str, wanted: str) -> str:
    """``wanted``, or the first model of ``/v1/models``; raises ForebayError where nobody answers or none is named.

    With ``wanted`` any answer will do: it shows that the target is there.
    """
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    fetch = _Fetch(f"GET {target.prefix}/models HTTP/1.1\r\nHost: {target.authority}\r\n{authorization}\r\n".encode("latin-1"))
    client.send(fetch)
    place = f"{'https' if target.tls else 'http'}://{target.authority}{target.prefix}/models"
    try:
        outcome, detail = await asyncio.wait_for(fetch.over, PATIENCE_REAL_S)
    except TimeoutError:
        raise ForebayError(f"{place} gave no answer within {PATIENCE_REAL_S:.0f} s") from None
    if outcome is not Outcome.COMPLETE:
        raise ForebayError(f"{place} can't be reached: {detail or outcome.value}; is it running, and is this its address?")
    if wanted:
        return wanted
    hint = " (pass --key)" if fetch.status in {401, 403} else " (pass --model)"
    if fetch.status != 200:
        raise ForebayError(f"{place} answered {fetch.status}, so no model is known{hint}")
    try:
        models = msgspec.json.decode(fetch.answer, type=_Models)
    except msgspec.DecodeError:
        raise ForebayError(f"{place} answered something that is not a list of models{hint}") from None
    if not models.data:
        raise ForebayError(f"{place} lists no model{hint}")
    return models.data[0].id
