"""Texts with a form of their own: addresses, URLs, times of day, time zones, command lines.

Each parser raises ValueError whose text is a hint for the person who wrote it, or empty.
"""

import datetime
import functools
import re
import shlex
import zoneinfo

from forebay.spec.kinds import Parsed
from forebay.spec.problems import did_you_mean
from forebay.spec.types import Listen

PLACEHOLDERS = ("port", "replica", "model", "speed", "devices")
DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_S = 86_400.0

_HOST = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]{{1,5}})")
_URL = re.compile(rf"(http://{_HOST}:([0-9]{{1,5}}))/?")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_]+)\}(?!\})")


def parse_date(text: str) -> str:
    """A day as it is written, which exists."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError("write year-month-day")
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError("no such day") from None


def parse_listen(text: str) -> Listen:
    """``host:port``; IPv6 hosts in brackets."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"write 127.0.0.1:{text}" if re.fullmatch(r"[0-9]{1,5}", text) else "")
    if int(match[2]) > 65_535:
        raise ValueError("ports end at 65535")
    return Listen(match[1].strip("[]"), int(match[2]))


def write_listen(listen: Listen) -> str:
    """The inverse of ``parse_listen``."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{host}:{listen.port}"


def parse_engine_url(text: str) -> str:
    """``http://host:port`` without its trailing slash, in the one way in which an address is written."""
    match = _URL.fullmatch(text)
    if match is not None and 0 < int(match[2]) <= 65_535:
        return f"{match[1].rpartition(':')[0].lower()}:{int(match[2])}"
    if match is not None:
        raise ValueError("ports are 1 to 65535")
    if text.startswith("https://"):
        raise ValueError("engines are spoken to in plain HTTP inside your network")
    if "@" in text:
        raise ValueError("leave out user and password: an engine is shown a key, by key_env or key_file")
    if re.fullmatch(rf"http://{_HOST}:[0-9]+/.+", text):
        raise ValueError("leave out the path: the gateway adds it")
    if _ADDRESS.fullmatch(text):
        raise ValueError(f"write http://{text}")
    raise ValueError("name the port" if re.fullmatch(rf"http://{_HOST}/?", text) else "")


def parse_time_of_day_s(text: str) -> float:
    """Seconds after midnight of ``HH:MM``, up to ``24:00``."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    seconds = int(match[1]) * 3600.0 + int(match[2]) * 60.0
    if int(match[2]) > 59 or seconds > DAY_S:
        raise ValueError("a day has 24 hours of 60 minutes")
    return seconds


def write_time_of_day(seconds: float) -> str:
    """The inverse of ``parse_time_of_day_s``."""
    minutes = round(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


@functools.cache
def _timezones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def parse_timezone(text: str) -> str:
    """A name of the tz database (read through the standard library, which carries it as data)."""
    try:
        zoneinfo.ZoneInfo(text)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError(did_you_mean(text, _timezones())) from None
    return text


def parse_command(text: str) -> tuple[str, ...]:
    """A command line split as a shell would split it; nothing else of a shell happens."""
    try:
        return check_command(tuple(shlex.split(text)))
    except ValueError as error:
        raise ValueError(str(error).lower()) from None


def check_command(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """``arguments`` themselves, if every ``{placeholder}`` in them is known and ``{port}`` is there."""
    if not arguments:
        raise ValueError
    named = [name for argument in arguments for name in _PLACEHOLDER.findall(argument)]
    for name in named:
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ValueError(f"{{{name}}} is not filled in, only {known} are")
    if "port" not in named:
        raise ValueError("say where the port goes, such as --port {port}: each replica gets its own")
    return arguments


LISTEN = Parsed("host:port", "127.0.0.1:8080", parse_listen, write_listen, r"\S+:[0-9]{1,5}")
ENGINE_URL = Parsed("http://host:port", "http://127.0.0.1:9100", parse_engine_url, pattern=r"http://[^\s/]+:[0-9]{1,5}/?")
TIME_OF_DAY = Parsed("a time of day from 00:00 to 24:00", "08:00", parse_time_of_day_s, write_time_of_day, r"[0-9]{1,2}:[0-9]{2}")
TIMEZONE = Parsed("a time zone, such as Europe/Paris", "Europe/Paris", parse_timezone, pattern=r"[A-Za-z0-9_+/-]+")
DATE = Parsed("a date, such as 2026-11-27", "2026-11-27", parse_date, pattern=r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
COMMAND_LINE = Parsed("a command with {port} in it", "vllm serve m --port {port}", parse_command, pattern=r"(.|\n)*\{port\}(.|\n)*")
