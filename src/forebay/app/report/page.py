"""One HTML file that shows everything and asks nobody: styles, script and data inside, no network, no fonts from elsewhere.

The summary table is written here, so that it can be read without a script, in a mail client or a diff; pictures are drawn
by the page's own script from the data beside it.
"""

import html
import importlib.resources
import string
from collections.abc import Mapping, Sequence

import msgspec

from forebay.app.report.columns import page_data
from forebay.app.report.content import Content, Played, format_hours
from forebay.domain.units import format_duration, format_share
from forebay.simulation.values import PolicySummary

HEADINGS = (
    "policy",
    "GPU-hours",
    "× limit",
    "cost",
    "saved vs\nstatic",
    "promises kept",
    "first token",
    "pace",
    "breaches\n(longest)",
    "shed",
    "cut",
    "scale\nactions",
    "reversals\na day",
)


def render(content: Content) -> str:
    """The whole page as text."""
    template = string.Template(_part("page.html"))
    # Inside a script element only "<" could end, or comment out, the data.
    data = msgspec.json.encode(page_data(content)).decode().replace("<", "\\u003c")
    return template.substitute(
        title=html.escape(content.title),
        verdict=html.escape(content.verdict),
        promised=f"{100 * content.attainment:g} %",
        facts="".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in content.facts),
        table=_table(content),
        notes=_notes(content),
        style=_part("style.css"),
        script=_part("script.js"),
        data=data,
    )


def _part(name: str) -> str:
    return importlib.resources.files("forebay.app.report").joinpath("page", name).read_text(encoding="utf-8").strip()


def _table(content: Content) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = [_bound_row(content)] if content.bound else []
    rows += [_row(index, played, content) for index, played in enumerate(content.played)]
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _bound_row(content: Content) -> str:
    assert content.bound is not None
    usd = content.bound.gpu_hours * content.gpu_hour_usd
    cells = [f'<span class="mark none"></span>clairvoyant{_times(content.bound.note)}', format_hours(content.bound.gpu_hours), "1"]
    cells.append(_usd(usd) if content.gpu_hour_usd else "–")
    if content.bound.attained is not None:
        # What it would save is no saving: nobody can have it.
        cells += ["–", _attained(content.bound.attained, content.attainment)]
    return _cells('class="bound"', cells + ["–"] * (len(HEADINGS) - len(cells)))


def _times(note: str) -> str:
    return f' <span class="pm">{html.escape(note)}</span>' if note else ""


def _row(index: int, played: Played, content: Content) -> str:
    summary = played.summary
    per_tier = len(summary.ttft_attainment) > 1
    cells = [
        f'<span class="mark{" holds" if summary.holds_slo else ""}"></span>{html.escape(summary.name)}',
        f"{format_hours(summary.gpu_hours)}{_spread(summary, 'gpu_hours', '{:,.1f}')}",
        f"{summary.vs_clairvoyant:.3f}" if summary.vs_clairvoyant is not None else "–",
        _usd(summary.cost_usd) if content.gpu_hour_usd else "–",
        _saved(summary) if content.gpu_hour_usd else "–",
        _attained(played.attained, content.attainment) + _spread(summary, "both_attainment", "{:.2%}"),
        _by_tier(summary.ttft_attainment, content.attainment, per_tier),
        _by_tier(summary.itl_attainment, content.attainment, per_tier),
        f"{summary.breaches} ({format_duration(summary.longest_breach_s)})" if summary.breaches else "0",
        f"{summary.shed:,}",
        f"{summary.truncated:,}",
        f"{summary.scale_actions:,}",
        f"{summary.reversals_per_day:.0f}",
    ]
    return _cells(f'data-policy="{index}"', cells)


def _cells(attributes: str, cells: Sequence[str]) -> str:
    return f"<tr {attributes}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _spread(summary: PolicySummary, name: str, form: str) -> str:
    half = summary.confidence.get(name)
    return f' <span class="pm">±{form.format(half)}</span>' if half is not None else ""


def _attained(share: float, promise: float) -> str:
    text = format_share(share, promise)
    return text if share >= promise else f'<span class="miss">{text}</span>'


def _by_tier(shares: Mapping[str, float], promise: float, named: bool) -> str:
    return "<br>".join(
        _attained(share, promise) + (f' <span class="pm">{html.escape(tier)}</span>' if named else "") for tier, share in shares.items()
    )


def _usd(value: float) -> str:
    text = f"${abs(value):,.0f}"
    return f"−{text}" if value < 0 and text != "$0" else text


def _saved(summary: PolicySummary) -> str:
    """What breaks the promise has saved nothing: it has not done the work."""
    saved = summary.saved_vs_static_usd
    return "–" if saved is None or not summary.holds_slo else _usd(saved)


def _notes(content: Content) -> str:
    if not content.notes:
        return ""
    points = "".join(f"<li>{html.escape(note)}</li>" for note in content.notes)
    return f'<section class="card notes"><h2>How to read this</h2><ul>{points}</ul></section>'
