"""How verbs find and ask a running Forebay: by address, or by the file that `forebay up` leaves in its state folder."""

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TypeVar

import msgspec

from forebay.app.files import RUNNING_FILE
from forebay.domain.errors import BadInput, ForebayError

T = TypeVar("T")
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 2**20


class NotRunning(ForebayError):
    """Forebay does not answer."""


def admin_url(admin: str | None, state_dir: str) -> str:
    """The admin address: ``admin`` as given, else from ``state_dir``; raises NotRunning where there is none."""
    if admin:
        if not admin.startswith(("http://", "https://")):
            raise BadInput(f"--admin: found {admin!r}; allowed: a URL such as http://127.0.0.1:8081")
        return admin.rstrip("/")
    running = Path(state_dir) / RUNNING_FILE
    try:
        return str(json.loads(running.read_text())["admin"])
    except FileNotFoundError:
        raise NotRunning(
            f"no running Forebay found ({running} is not there); start one with `forebay up -c FILE`, or name it with --admin URL"
        ) from None
    except (ValueError, KeyError):
        raise NotRunning(f"{running} is not readable; name the admin address with --admin URL") from None


def ask(base_url: str, path: str, query: dict[str, str], kind: type[T]) -> T:
    """GET ``path`` and decode the answer as ``kind``; raises NotRunning, or BadInput with the server's words."""
    url = f"{base_url}{path}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(ANSWER_BYTES_MAX), type=kind)
    except urllib.error.HTTPError as error:
        said = error.read(65536)
        try:
            raise BadInput(str(json.loads(said)["error"])) from None
        except (ValueError, KeyError):
            raise NotRunning(f"{url} answered {error.code}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotRunning(f"no answer from {base_url} ({error}); is `forebay up` running?") from None
