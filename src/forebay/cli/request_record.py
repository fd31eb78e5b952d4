"""Where the record of one request is found: at a gateway that still knows it, or in a history; and which of them told it.

Whoever names no gateway and no state folder is looked up everywhere on this machine, as an id doesn't say which gateway answered: at the
gateways of every `forebay up` that runs, then in the history of each. Whatever is told says where it is from, so that nobody takes the
past of one fleet for the present of another.
"""

import http
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forebay.cli import admin_client
from forebay.domain.errors import BadInput, ForebayError
from forebay.gateway.elsewhere import tells_most
from forebay.gateway.leaving import SAMPLE_EVERY
from forebay.gateway.records import REQUESTS, Record

ALONE = "a `forebay gateway` alone is only found by --gateway URL, and its history by --state FOLDER"


class NotKnown(BadInput):
    """The gateways know no such request, or no longer."""

    def __init__(self, said: str, asked: Sequence[str]) -> None:
        super().__init__(f"--request: {said} Asked: {', '.join(asked)}.")
        self.said, self.asked = said, asked


class NeedsKey(BadInput):
    """Teams are configured, and no key was given."""


class WrongKey(BadInput):
    """The key is nobody's there."""


class Told(msgspec.Struct, frozen=True):
    """A record, and who tells it."""

    record: Record
    by: str
    """``gateway`` or ``history``."""
    at: str
    """Its address, or its file."""
    since: str = ""
    """Of a history: why no gateway tells it."""


class _Error(msgspec.Struct):
    message: str


class _Reply(msgspec.Struct):
    error: _Error


def told(request_id: str, gateway: str | None, state: str | None, key: str) -> Told:
    """The record: a gateway's, or, where none answers, all have forgotten it or no key is given, a history's. Raises what `ask` raises.

    A gateway tells a request's own team only; the history is a file of the operator's, who needs no key to read it.
    """
    troubles: list[ForebayError] = []
    found: list[Told] = []
    folders: list[Path] = []
    try:
        instances = admin_client.instances(gateway, state)
    except admin_client.NotRunning as error:
        instances = ()
        troubles.append(error)
        folders.append(admin_client.state_here(state))
    for one in instances:
        try:
            found.append(_latest(one.gateways, request_id, key))
        except WrongKey as error:  # whoever tries keys gets nothing from a file either
            troubles.append(error)
        except (admin_client.NotRunning, NotKnown, NeedsKey) as error:
            troubles.append(error)
            folders.append(one.state)
    if found:
        return max(found, key=lambda one: one.record.arrived_unix_s)
    if not folders:
        raise troubles[0]
    if gateway is None and state is None and admin_client.history_file(here := admin_client.state_here(None)).is_file():
        folders.append(here)
    try:
        return recorded(request_id, list(dict.fromkeys(folder.resolve() for folder in folders)), _since(troubles))
    except BadInput as also:
        raise _all_of(troubles, also, ALONE if gateway is None and state is None else "") from None


def _latest(gateway_urls: Sequence[str], request_id: str, key: str) -> Told:
    """What the gateways of one fleet know: one that forwarded it has a record too, which is told only where no other is.

    Raises what `ask` raises where none of them tells any: NotKnown where one of them answered.
    """
    found: list[Told] = []
    unknown: list[NotKnown] = []
    silent: list[admin_client.NotRunning] = []
    for url in gateway_urls:
        try:
            found.append(Told(ask(url, request_id, key), "gateway", url))
        except NotKnown as error:
            unknown.append(error)
        except admin_client.NotRunning as error:
            silent.append(error)
    if found:
        return max(found, key=lambda one: tells_most(one.record))
    if not unknown:
        raise silent[0]
    raise NotKnown("; ".join((unknown[0].said, *map(str, silent))), [url for one in unknown for url in one.asked])


def recorded(request_id: str, folders: Sequence[Path], since: str) -> Told:
    """The latest record under this id in the history files of ``folders``; raises BadInput where there is none."""
    found: list[Told] = []
    troubles: list[ForebayError] = []
    read: list[Path] = []
    for folder in folders:
        path = admin_client.history_file(folder)
        try:
            record = _kept(request_id, folder)
        except ForebayError as error:
            troubles.append(error)
            continue
        read.append(path)
        if record is not None:
            found.append(Told(record, "history", str(path), since))
    if found:
        return max(found, key=lambda one: one.record.arrived_unix_s)
    words = [str(error) for error in troubles]
    if read:
        files = ", ".join(map(str, read))
        words.insert(
            0,
            f"Nor is it in the history ({files}), which keeps what was refused, tried again, continued or slow, "
            f"and of the others one in {SAMPLE_EVERY}.",
        )
    raise BadInput(" ".join(words))


def _kept(request_id: str, folder: Path) -> Record | None:
    with admin_client.history_in(folder) as store:
        found = store.finished(request_id)
    if not found:
        return None
    try:
        records = [msgspec.json.decode(one.record, type=Record) for one in found if one.team == found[0].team]
    except msgspec.MsgspecError as error:
        raise BadInput(f"The history's record of it can't be read ({error}): a newer version's?") from None
    # Under one id there may have been several requests; two gateways tell of the latest if they had it at one time.
    latest = records[0]
    return max((one for one in records if one.arrived_unix_s + one.total_s >= latest.arrived_unix_s), key=tells_most)


def ask(gateway_url: str, request_id: str, key: str) -> Record:
    """The record; raises BadInput with the gateway's words where it tells none, NotRunning where none answers."""
    status, body = admin_client.fetch(f"{gateway_url}{REQUESTS.decode()}{urllib.parse.quote(request_id, safe='')}", key)
    try:
        if status == http.HTTPStatus.OK:
            return msgspec.json.decode(body, type=Record)
        said = msgspec.json.decode(body, type=_Reply).error.message
    except msgspec.MsgspecError:
        raise admin_client.NotRunning(
            f"{gateway_url} answered {status}, but not as a gateway of Forebay does; name one with --gateway"
        ) from None
    if status == http.HTTPStatus.UNAUTHORIZED:
        if key:
            raise WrongKey(f"--key: found one that the gateway {gateway_url} does not know; allowed: an API key of the request's team")
        raise NeedsKey(
            "--key: found none; give --key KEY of the request's team, the only one that a gateway tells. "
            "Whoever may read the history in the state folder (--state) needs none for what is there."
        )
    raise NotKnown(said, (gateway_url,))


def _since(troubles: Sequence[ForebayError]) -> str:
    """Why no gateway tells it, in short: the first of what was found, by how much is known then."""
    if any(isinstance(error, NotKnown) for error in troubles):
        return "no gateway that was asked knows it any more"
    if any(isinstance(error, NeedsKey) for error in troubles):
        return "a gateway tells it by a --key of its team only"
    return "no gateway answers"


def _all_of(troubles: Sequence[ForebayError], also: BadInput, hint: str) -> ForebayError:
    """One error of what all of them said, and the histories."""
    unknown = [error for error in troubles if isinstance(error, NotKnown)]
    others = [str(error) for error in troubles if not isinstance(error, NotKnown)]
    asked = [url for error in unknown for url in error.asked]
    said = list(dict.fromkeys([*(str(NotKnown(error.said, asked)) for error in unknown), *others, str(also)]))
    if unknown and hint:
        said.append(f"({hint[0].upper()}{hint[1:]}.)")
    words = " ".join(one if one.endswith((".", ".)")) else f"{one}." for one in said[:-1])
    if unknown:
        return BadInput(f"{words} {said[-1]}")
    kind = next((kind for kind in (NeedsKey, WrongKey) if any(isinstance(error, kind) for error in troubles)), admin_client.NotRunning)
    return kind(f"{words} {said[-1]}")
