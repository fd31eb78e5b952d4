"""How verbs find and ask a running Forebay: by address, by its state folder, or by being the only one on this machine."""

import contextlib
import functools
import http.client
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from forebay.app.files import RUNNING_FILE, STORE_FILE, Running, announced
from forebay.domain.errors import BadInput, ForebayError

if TYPE_CHECKING:
    from forebay.adapters.sqlite import SqliteStore

T = TypeVar("T")
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 2**20
ERROR_BYTES_MAX = 65_536
DEFAULT_STATE = ".forebay"
_HINTS = {
    "gateway": " (a `forebay gateway` alone is only found by --gateway URL; what a gateway knows of requests ends with its process)",
    "admin": " (a `forebay gateway` alone has no controller to ask: its own /ready and /metrics tell of it)",
}
"""What else to know where none of a kind is found."""

# Proxies are for the world outside; the admin API is on this machine or in this network.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotRunning(ForebayError):
    """Forebay does not answer."""


class _Refusal(msgspec.Struct):
    """The admin API's words about a bad question."""

    error: str


def admin_url(admin: str | None, state_dir: str | None) -> str:
    """The admin address: ``admin`` as given, or of the `forebay up` in ``state_dir``; without either, in ``.forebay`` here or the only
    one on this machine. Raises NotRunning where there is none, BadInput for an address that is none."""
    if admin:
        if not admin.startswith(("http://", "https://")):
            raise BadInput(f"--admin: found {admin!r}; allowed: a URL such as http://127.0.0.1:8081")
        return admin.rstrip("/")
    return _running(state_dir, "admin").admin


class Instance(msgspec.Struct, frozen=True):
    """One Forebay whose gateways may be asked."""

    state: Path
    """Its state folder."""
    gateways: tuple[str, ...]
    """The address of each; where several share one, each one's own."""


def instances(gateway: str | None, state_dir: str | None) -> tuple[Instance, ...]:
    """Whose gateways are meant: ``gateway`` as given, or those of the `forebay up` in ``state_dir``; without either, in ``.forebay`` here
    and of every other one on this machine. Raises NotRunning where there is none, BadInput for an address that is none."""
    if gateway:
        if not gateway.startswith(("http://", "https://")):
            raise BadInput(f"--gateway: found {gateway!r}; allowed: a URL such as http://127.0.0.1:8080")
        return (_named(gateway.rstrip("/"), state_dir),)
    here = Path(state_dir or DEFAULT_STATE)
    if state_dir is not None:
        return (_instance(here, _running(state_dir, "gateway")),)
    found = [_instance(Path(one.state), one.running) for one in announced()]
    if (here / RUNNING_FILE).exists() and all(one.state != here.resolve() for one in found):
        found.insert(0, _instance(here, _running(None, "gateway")))
    return tuple(found) or (_instance(here, _running(None, "gateway")),)


def _named(url: str, state_dir: str | None) -> Instance:
    """The one at ``url``: of one that was announced the state folder is known."""
    if state_dir is None:
        for one in announced():
            known = _instance(Path(one.state), one.running)
            if url in {one.running.gateway, *known.gateways}:
                return Instance(known.state, (url,))
    return Instance(state_here(state_dir), (url,))


def _instance(state: Path, running: Running) -> Instance:
    return Instance(state, tuple(running.gateways.values()) or (running.gateway,))


def _running(state_dir: str | None, wanted: str) -> Running:
    running = Path(state_dir or DEFAULT_STATE) / RUNNING_FILE
    try:
        return msgspec.json.decode(running.read_bytes(), type=Running)
    except FileNotFoundError:
        if state_dir is None:
            return _only_one(running, wanted)
        raise NotRunning(
            f"no Forebay runs in {state_dir} ({running} is not there); start one with `forebay up -c FILE`{_HINTS.get(wanted, '')}"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotRunning(f"{running} can't be read ({error}); name the {wanted} address with --{wanted} URL") from None


@contextlib.contextmanager
def history(state_dir: str | None) -> "Iterator[SqliteStore]":
    """The history file of a state folder, to be read: of ``state_dir``, or of ``.forebay`` here, or of the only one that runs.

    Raises BadInput where there is none.
    """
    folder = state_here(state_dir)
    if state_dir is None and folder != Path(DEFAULT_STATE):
        _say_which(folder)
    with history_in(folder) as store:
        yield store


def state_here(state_dir: str | None) -> Path:
    """The state folder whose history is meant, found in the same way."""
    folder = Path(state_dir or DEFAULT_STATE)
    running = announced() if state_dir is None and not history_file(folder).is_file() else []
    return Path(running[0].state) if len(running) == 1 else folder


def history_file(folder: Path) -> Path:
    """Of the state folder ``folder``."""
    return folder / STORE_FILE


@contextlib.contextmanager
def history_in(folder: Path) -> "Iterator[SqliteStore]":
    """The history file of ``folder``, to be read. Raises BadInput where there is none."""
    from forebay.adapters.sqlite import SqliteStore  # half a second that no other verb needs to spend

    store = SqliteStore(history_file(folder), read_only=True)
    try:
        yield store
    finally:
        store.close()


def _only_one(looked_at: Path, wanted: str) -> Running:
    found = announced()
    if not found:
        raise NotRunning(
            f"no running Forebay found ({looked_at} is not there, and none was announced on this machine); "
            f"start one with `forebay up -c FILE`, or name it with --{wanted} URL{_HINTS.get(wanted, '')}"
        )
    if len(found) > 1:
        states = ", ".join(f"--state {one.state}" for one in found)
        raise BadInput(f"{len(found)} Forebays run on this machine; say which: {states}")
    _say_which(Path(found[0].state))
    return found[0].running


@functools.lru_cache(maxsize=1)  # said once, though its history may be looked at too
def _say_which(state: Path) -> None:
    """Whose answer it is: whoever named no folder, and has none here, may have meant another fleet."""
    print(f"forebay: nothing runs in {DEFAULT_STATE} here; this is the only one on this machine: --state {state}", file=sys.stderr)


def ask(base_url: str, path: str, query: dict[str, str], kind: type[T]) -> T:
    """GET ``path`` and decode the answer as ``kind``; raises NotRunning, or BadInput with the server's words."""
    url = f"{base_url}{path}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    try:
        with _DIRECT.open(url, timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(ANSWER_BYTES_MAX), type=kind)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error.code, error.read(ERROR_BYTES_MAX)) from None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        why = getattr(error, "reason", error)
        raise NotRunning(
            f"no answer from {base_url} that makes sense ({why}); is `forebay up` running, and is this its admin address?"
        ) from None


def fetch(url: str, key: str) -> tuple[int, bytes]:
    """GET ``url`` with ``key``, where there is one; returns the status and the body, whatever they are. Raises NotRunning."""
    try:
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
        with _DIRECT.open(asked, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(ERROR_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "set SSL_CERT_FILE to its certificate, and name it with --gateway as the certificate does"
            raise NotRunning(f"{url} has a certificate that isn't trusted here ({reason.verify_message}); {hint}") from None
        raise NotRunning(f"no answer from {url} ({reason}); does the gateway run?{_HINTS['gateway']}") from None


def _refused(url: str, status: int, body: bytes) -> ForebayError:
    try:
        if status == 400:
            return BadInput(msgspec.json.decode(body, type=_Refusal).error)
    except msgspec.MsgspecError:
        pass
    return NotRunning(f"{url} answered {status}; is this the admin address of a Forebay?")
