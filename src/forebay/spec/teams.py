"""Tiers, teams and grants: the platform owns policy; a team's own file may move only within what it was granted.

A team's promise is kept as a whole ``Tier`` in ``Team.promises``: name, rank and preemptibility stay the platform's.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.domain.units import format_duration
from forebay.spec.problems import Problems, masked, quoted
from forebay.spec.records import Got
from forebay.spec.types import DEFAULT_TIERS, Team, TeamLimits, Tier

ANY_TEAM = "*"
SHARES_MAX = 0.5
"""Of the tokens started, what all lanes below the top one may be promised together."""
GRANTED_WEIGHT = 1.0
GRANTED_KEYS = 10


def build_tiers(root: Got, problems: Problems) -> tuple[Tier, ...]:
    """The tiers in order of rank."""
    declared: Mapping[str, Got] = root.get("tiers", {})
    if not declared:
        return DEFAULT_TIERS
    usual = {tier.name: tier for tier in DEFAULT_TIERS}
    tiers: list[Tier] = []
    ranks: dict[int, str] = {}
    for name, got in declared.items():
        start: Any = usual.get(name, Tier(name, rank=-1, ttft_s=1.0, longest_wait_s=30.0))
        for key in ("rank", "ttft", "longest_wait") if name not in usual else ():
            if key not in got and got.good(key):
                kind = next(field.kind for field in got.record.fields if field.key == key)
                problems.add(got.at(key), "nothing", kind.words, "add it")
        aliases = tuple(item.value for item in got.get("aliases", ()))
        tier: Tier = msgspec.structs.replace(start, aliases=aliases, **got.filled())
        if tier.rank in ranks and tier.rank >= 0 and got.good("rank"):
            problems.add(got.at("rank"), str(tier.rank), "a rank of its own", f"{ranks[tier.rank]} has it already")
        ranks.setdefault(tier.rank, name)
        tiers.append(tier)
    _check_aliases(declared, problems)
    tiers.sort(key=lambda tier: tier.rank)
    shares = sum(tier.min_share for tier in tiers[1:])
    if shares > SHARES_MAX:
        least = declared[tiers[-1].name]
        problems.add(
            least.at("min_share"), f"{shares:g} of all below the top tier", f"at most {SHARES_MAX:g} together", "the rest is the top tier's"
        )
    return tuple(tiers)


def _check_aliases(declared: Mapping[str, Got], problems: Problems) -> None:
    """Report a value of ``service_tier`` that means two tiers."""
    owners = {name: f"tiers.{name}" for name in declared}
    for name, got in declared.items():
        for item in got.get("aliases", ()):
            if item.value in owners:
                problems.add(item.place, quoted(item.value), "a name that no other tier has", f"it already belongs to {owners[item.value]}")
            owners.setdefault(item.value, f"tiers.{name}")


def build_teams(root: Got, files: Mapping[str, Got], tiers: tuple[Tier, ...], problems: Problems) -> tuple[Team, ...]:
    """The platform's teams, then those of the team files."""
    grants: Mapping[str, Got] = root.get("grants", {})
    by_name = {tier.name: tier for tier in tiers}
    for grant in grants.values():
        for name in grant.get("tiers", {}):
            if name not in by_name:
                problems.unknown(grant.get("tiers")[name].place, name, by_name, "tier")
    written: list[tuple[str, Got, bool]] = [(name, got, False) for name, got in root.get("teams", {}).items()]
    written += [(name, got, True) for file in files.values() for name, got in file.get("teams", {}).items()]
    teams: dict[str, Team] = {}
    places: dict[str, Got] = {}
    for name, got, own_file in written:
        if name in teams:
            first = places[name].place
            problems.add(got.place, f'a second team "{name}"', "each team once", f"it is in {first.file}:{first.line} already")
            continue
        places[name] = got
        granted = _grant(name, got, grants, root.place.file, problems) if own_file else None
        teams[name] = _team(name, got, by_name, granted, problems)
        if granted is not None:
            _within(teams[name], got, granted, by_name, problems)
    _check_keys(places, problems)
    return tuple(teams.values())


def _grant(name: str, got: Got, grants: Mapping[str, Got], platform_file: str, problems: Problems) -> Got | None:
    grant = grants.get(name) or grants.get(ANY_TEAM)
    if grant is None:
        names = ", ".join(grants) or "none"
        problems.add(
            got.place, f'the team "{name}"', f"teams that {platform_file} grants something: {names}", f"the platform must add grants.{name}"
        )
    return grant


def _team(name: str, got: Got, tiers: Mapping[str, Tier], granted: Got | None, problems: Problems) -> Team:
    allowed = list(tiers) if granted is None else list(granted.get("tiers") or tiers)
    written = got.get("tiers", ())
    promises: list[Tier] = []
    if isinstance(written, Mapping):
        places = {tier: promise.place for tier, promise in written.items()}
        for tier, promise in written.items():
            own = {f"{key}_s": promise.get(key) for key in ("ttft", "longest_wait") if key in promise}
            if tier in tiers and own:
                promises.append(msgspec.structs.replace(tiers[tier], **own))
    else:
        places = {item.value: item.place for item in written}
    for tier, place in places.items():
        if tier not in tiers:
            problems.unknown(place, tier, tiers, "tier")
    own_tiers = [tier for tier in places if tier in tiers] or [tier for tier in allowed if tier in tiers]
    usable = sorted(own_tiers, key=lambda tier: tiers[tier].rank)
    keys = _keys(got, tiers, usable, problems)
    limited = bool(places) or bool(granted is not None and granted.get("tiers"))
    given = {} if granted is None else granted.record_of("limits").filled()
    return Team(
        name=name,
        keys=keys,
        tiers=tuple(usable) if limited else (),
        promises=tuple(promises),
        overflow=_listed(got, "overflow"),
        limits=TeamLimits(**{**given, **got.record_of("limits").filled()}),
        residency=_listed(got, "residency"),
        **got.filled(),
    )


def _listed(got: Got, key: str) -> tuple[str, ...]:
    return tuple(item.value for item in got.get(key, ()))


def _keys(got: Got, tiers: Mapping[str, Tier], usable: list[str], problems: Problems) -> tuple[tuple[str, str], ...]:
    keys: list[tuple[str, str]] = []
    for item in got.get("keys", ()):
        key: Got = item.value
        tier = key.get("tier", usable[0] if usable else "")
        if tier not in tiers and "tier" in key:
            problems.unknown(key.at("tier"), tier, usable, "tier")
        elif tier not in usable and "tier" in key and got.good("tiers"):
            problems.add(key.at("tier"), quoted(tier), f"a tier of this team: {', '.join(usable)}", "add it to the team's tiers")
        keys.append((str(key.get("key", "")), tier))
    return tuple(keys)


def _within(team: Team, got: Got, grant: Got, tiers: Mapping[str, Tier], problems: Problems) -> None:
    """Report what a team's file takes beyond its grant, naming the bound."""
    granted: Mapping[str, Got] = grant.get("tiers", {})
    written = got.get("tiers", ())
    places = (
        {name: promise.place for name, promise in written.items()} if isinstance(written, Mapping) else {i.value: i.place for i in written}
    )
    for name, place in places.items():
        if granted and name in tiers and name not in granted:
            problems.add(place, quoted(name), f"the tiers of {grant.at('tiers').path}: {', '.join(granted)}")
    for promise in team.promises:
        bounds = granted.get(promise.name)
        tier = tiers[promise.name]
        ttft_s = bounds.get("ttft_min", tier.ttft_s) if bounds else tier.ttft_s
        wait_s = bounds.get("longest_wait_max", tier.longest_wait_s) if bounds else tier.longest_wait_s
        own: Got = written[promise.name]
        bound = bounds.place.path if bounds else f"tiers.{promise.name}"
        if promise.ttft_s < ttft_s and "ttft" in own:
            name = f"{bound}.ttft_min" if bounds else f"{bound}.ttft"
            problems.add(own.at("ttft"), format_duration(promise.ttft_s), f"at least {format_duration(ttft_s)}, as {name} says")
        if promise.longest_wait_s > wait_s and "longest_wait" in own:
            name = f"{bound}.longest_wait_max" if bounds else f"{bound}.longest_wait"
            problems.add(
                own.at("longest_wait"), format_duration(promise.longest_wait_s), f"at most {format_duration(wait_s)}, as {name} says"
            )
    bounds, own_limits = grant.record_of("limits"), got.record_of("limits")
    for key in own_limits.places:
        most, asked = bounds.get(key), own_limits.get(key)
        if most is not None and asked is not None and asked > most:
            problems.add(own_limits.at(key), str(asked), f"at most {most}, as {bounds.at(key).path} says")
    weight_max = grant.get("weight_max", GRANTED_WEIGHT)
    if team.weight > weight_max:
        problems.add(got.at("weight"), f"{team.weight:g}", f"at most {weight_max:g}, as {grant.at('weight_max').path} says")
    keys_max = grant.get("keys_max", GRANTED_KEYS)
    if len(team.keys) > keys_max:
        problems.add(got.at("keys"), f"{len(team.keys)} keys", f"at most {keys_max}, as {grant.at('keys_max').path} says")


def _check_keys(teams: Mapping[str, Got], problems: Problems) -> None:
    seen: dict[str, str] = {}
    for got in teams.values():
        for item in got.get("keys", ()):
            secret = item.value.get("key")
            if secret is None:
                continue
            if secret in seen:
                problems.add(item.value.at("key"), f"the key {masked(secret)} again", "each key once", f"it is in {seen[secret]} already")
            seen.setdefault(secret, item.place.path)
