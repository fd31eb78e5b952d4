"""Text to `Spec`: read by the tables first, then built and checked as a whole; every problem of every file at once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from forebay.domain.profile import Profile
from forebay.spec.fields import ROOT, TEAM_FILE
from forebay.spec.formats import DAY_NAMES, DAY_S
from forebay.spec.long_context import check_long_context
from forebay.spec.overflow import check_overflow, check_residency
from forebay.spec.pools import Known, build_pool, check_adapters, check_reached, check_urls
from forebay.spec.problems import BadSpec, Place, Problem, Problems
from forebay.spec.profiles import build_hardware, build_models, build_profiles
from forebay.spec.records import Got, Record
from forebay.spec.teams import build_teams, build_tiers
from forebay.spec.tree import parse
from forebay.spec.types import CalendarEntry, Limits, Pool, Spec, Tls

__all__ = ["BadSpec", "Problem", "decode"]

_OF_PROFILES = dataclasses.replace(ROOT, fields=tuple(dataclasses.replace(field, required=False) for field in ROOT.fields))
_DAYS = {"all": (0, 1, 2, 3, 4, 5, 6), "weekdays": (0, 1, 2, 3, 4), "weekends": (5, 6)}


def decode(text: str, filename: str, profiles: Mapping[str, Profile], teams: Mapping[str, str] = {}) -> Spec:
    """The `Spec` of a ``forebay.yaml``.

    ``profiles``: the shipped ones, by name. ``teams``: the team files beside it, file name to text. The names are only
    used in messages. Raises BadSpec with all problems, in the order of files and lines.
    """
    problems = Problems()
    root = _read(text, filename, ROOT, problems)
    files = {name: _read(own, name, TEAM_FILE, problems) for name, own in teams.items()}
    spec = None if "*" in root.bad else _build(root, files, profiles, problems)
    problems.raise_if_any([filename, *teams])
    assert spec is not None, "a root that is not a mapping has been reported"
    return spec


def decode_profiles(text: str, filename: str, shipped: Mapping[str, Profile]) -> tuple[dict[str, Profile], bool]:
    """The profiles of the file's own, and whether it has pools as well: without, it is no configuration, and needn't be one.

    Raises BadSpec with all that is wrong with what is written there.
    """
    problems = Problems()
    root = _read(text, filename, _OF_PROFILES, problems)
    found = {} if "*" in root.bad else build_profiles(root, shipped, problems)
    problems.raise_if_any([filename])
    return {name: each for name, each in found.items() if each is not None and name not in shipped}, "pools" in root


def _read(text: str, file: str, record: Record, problems: Problems) -> Got:
    top = Place(file, 1)
    node = parse(text, file, problems)
    if node is None:
        return Got(top, record, bad={"*"})
    return record.read(node, top, problems)


def _build(root: Got, files: Mapping[str, Got], shipped: Mapping[str, Profile], problems: Problems) -> Spec:
    declared: Mapping[str, Got] = root.get("models", {})
    hardware = build_hardware(root)
    known = Known(tuple(declared) or None, build_profiles(root, shipped, problems), hardware)
    written: Mapping[str, Got] = root.get("pools", {})
    pools = tuple(build_pool(name, got, known, problems) for name, got in written.items() if got.good("*"))
    if not written and root.good("pools"):
        problems.add(root.at("pools"), "no pools", "at least one pool", "add one, such as chat: {attach: [http://127.0.0.1:9100]}")
    check_urls(written, problems)
    check_adapters(root, problems)
    tiers = build_tiers(root, problems)
    tls = root.record_of("gateway").record_of("tls")
    listens: dict[str, Any] = {**root.record_of("gateway").filled(), **root.record_of("admin").filled()}
    spec = Spec(
        pools=pools,
        models=build_models(root, _contexts(pools), problems),
        tiers=tiers,
        teams=build_teams(root, files, tiers, problems),
        hardware=tuple(entry[0] for entry in hardware.values() if entry is not None),
        calendar=_calendar(root, pools, written, problems),
        tls=Tls(**tls.filled()) if {"cert", "key"} <= tls.values.keys() else None,
        limits=Limits(**root.record_of("limits").filled()),
        **listens,
        **root.record_of("alerts").filled(),
        **root.filled(),
    )
    _check_whole(root, spec, problems)
    check_overflow(spec, written, problems)
    check_long_context(spec, written, problems)
    check_reached(spec, written, problems)
    for file in (root, *files.values()):
        check_residency(spec, file.get("teams", {}), problems)
    _check_speed(root, spec, written, problems)
    return spec


def _contexts(pools: tuple[Pool, ...]) -> dict[str, int]:
    """The longest context that some pool of each model holds; 0 where one of them says nothing of it."""
    longest: dict[str, int] = {}
    for pool in pools:
        tokens = pool.profile.context_tokens if pool.profile else 0
        before = longest.get(pool.model)
        longest[pool.model] = tokens if before is None else (max(before, tokens) if before and tokens else 0)
    return longest


def _calendar(root: Got, pools: tuple[Pool, ...], written: Mapping[str, Got], problems: Problems) -> tuple[CalendarEntry, ...]:
    entries: list[CalendarEntry] = []
    names: dict[str, int] = {}
    for item in root.get("calendar", ()):
        got: Got = item.value
        if not got.good():
            continue
        entry = _entry(got, pools, written, problems)
        if entry.name in names:
            problems.add(got.at("name"), f'"{entry.name}" again', "each name once", f"it is on line {names[entry.name]} already")
        names.setdefault(entry.name, got.at("name").line)
        entries.append(entry)
    return tuple(entries)


def _entry(got: Got, pools: tuple[Pool, ...], written: Mapping[str, Got], problems: Problems) -> CalendarEntry:
    for each in got.get("pools", ()):
        if each.value not in written:
            problems.unknown(each.place, each.value, written, "pool")
    chosen = tuple(each.value for each in got.get("pools", ())) or tuple(pool.name for pool in pools)
    values = got.filled()
    start_s, end_s = values.pop("start_s"), values.pop("end_s")
    if start_s == end_s:
        problems.add(got.at("to"), "the same time as from", "another time", "a whole day is 00:00 to 24:00")
    if end_s < start_s:
        end_s += DAY_S
    for pool in pools:
        most = pool.scaling.max_replicas
        if pool.name in chosen and values["min_replicas"] > most and written[pool.name].record_of("scaling").good("max", "min"):
            problems.add(got.at("min"), str(values["min_replicas"]), f"at most {most}, the max of pools.{pool.name}")
    if "date" in got and "days" in got:
        problems.add(got.at("date"), "days as well", "one of the two", "days come again each week, a date comes once")
    days, timezone = _days(got.get("days", "all")), got.get("timezone", "UTC")
    return CalendarEntry(pools=chosen, days=days, start_s=start_s, end_s=end_s, timezone=timezone, **values)


def _days(written: Any) -> tuple[int, ...]:
    if isinstance(written, str):
        return _DAYS.get(written) or (DAY_NAMES.index(written),)
    return tuple(sorted({DAY_NAMES.index(item.value) for item in written}))


def _check_whole(root: Got, spec: Spec, problems: Problems) -> None:
    same = spec.gateway == spec.admin and spec.gateway.port != 0
    if same and root.record_of("gateway").good() and root.record_of("admin").good():
        place = root.record_of("admin").at("listen") if "admin" in root else root.record_of("gateway").at("listen")
        problems.add(
            place, f"{spec.admin.host}:{spec.admin.port} for both gateway and admin", "an address for each", "change one of the ports"
        )
    limits = root.record_of("limits")
    if spec.limits.body_bytes_max > spec.limits.bodies_bytes_max and limits.good("body", "bodies"):
        place = limits.at("body") if "body" in limits else limits.at("bodies")
        problems.add(place, "a body larger than all bodies together", "body at most bodies")


def _check_speed(root: Got, spec: Spec, written: Mapping[str, Got], problems: Problems) -> None:
    """Real engines run in real time: only a command that takes the speed can be told of another one."""
    if spec.speed == 1:
        return
    for pool in spec.pools:
        engine = pool.engine
        taken = any("{speed}" in text for text in (*engine.command, *(value for _, value in engine.env)))
        if engine.command and not taken and written[pool.name].record_of("engine").good("command", "env"):
            problems.add(
                written[pool.name].record_of("engine").at("command"),
                f"a command without {{speed}}, and a speed of {spec.speed:g} on line {root.at('speed').line}",
                "speed: 1 for real engines, which run in real time",
                "remove speed, or hand {speed} to engines that understand it",
            )
