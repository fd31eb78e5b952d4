"""The ``/metrics`` page, rendered from parts: text that never changes, and numbers that are looked at once per scrape.

A page has some 600 lines and most of them don't change from one scrape to the next: a histogram is written out again
only if it has counted since, so that a scrape of an idle engine is a join of strings.
"""

from collections.abc import Callable

from forebay.domain.profile import Profile
from forebay.emulator.families import CACHE_CONFIG, CACHE_CONFIG_HELP, COUNTER, HISTOGRAMS, SCALARS, Family
from forebay.emulator.stats import Histogram, Number, Stats

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def number(value: float) -> str:
    """``value`` as Prometheus' Python client writes it: ``2.0``, ``1.79e+09`` from ten million on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


def labels(pairs: dict[str, str]) -> str:
    """``{a="1",b="2"}``, in alphabetical order."""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in sorted(pairs.items())) + "}"


def header(name: str, kind: str, help_text: str) -> str:
    """The two lines above a family's samples."""
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


class Sample:
    """One line: its text up to the value, and the number it shows."""

    __slots__ = ("_number", "_prefix")

    def __init__(self, prefix: str, shown: Number) -> None:
        self._prefix = prefix
        self._number = shown

    def render(self) -> str:
        """The line."""
        return f"{self._prefix} {number(self._number.value)}\n"


class HistogramLines:
    """The lines of one histogram without labels of its own, kept until it counts again."""

    __slots__ = ("_histogram", "_prefixes", "_seen", "_text")

    def __init__(self, name: str, common: dict[str, str], histogram: Histogram) -> None:
        bounds = [number(bound) for bound in histogram.bounds] + ["+Inf"]
        self._prefixes = [f"{name}_bucket{labels({**common, 'le': bound})} " for bound in bounds]
        suffix = labels(common) if common else ""
        self._prefixes += [f"{name}_count{suffix} ", f"{name}_sum{suffix} "]
        self._histogram = histogram
        self._seen = -1
        self._text = ""

    def render(self) -> str:
        """All its lines."""
        histogram = self._histogram
        if histogram.count != self._seen:
            self._seen = histogram.count
            total = 0
            values = []
            for count in histogram.counts:
                total += count
                values.append(number(total))
            values += [number(histogram.count), number(histogram.sum)]
            self._text = "".join([prefix + value + "\n" for prefix, value in zip(self._prefixes, values, strict=True)])
        return self._text


class Page:
    """One engine's page. ``before`` and ``after`` render what the process and the HTTP server say."""

    def __init__(
        self,
        stats: Stats,
        profile: Profile,
        model: str,
        engine_label: str,
        created_wall_s: float,
        *,
        before: Callable[[], str],
        after: Callable[[], str],
    ) -> None:
        self._common = {"engine": engine_label, "model_name": model}
        self._created = number(created_wall_s)
        self._before = before
        self._after = after
        self._parts: list[str | Sample | HistogramLines] = []
        for family in SCALARS:
            self._add_scalar(family, stats)
        for row in HISTOGRAMS:
            name = f"vllm:{row.name}"
            self._parts.append(header(name, "histogram", row.help))
            self._parts.append(HistogramLines(name, self._common, getattr(stats, row.number)))
            self._parts.append(header(f"{name}_created", "gauge", row.help) + f"{name}_created{labels(self._common)} {self._created}\n")
        config = labels(_cache_config(profile, engine_label))
        self._parts.append(header("vllm:cache_config_info", "gauge", CACHE_CONFIG_HELP) + f"vllm:cache_config_info{config} 1.0\n")

    def _add_scalar(self, family: Family, stats: Stats) -> None:
        name = f"vllm:{family.name}"
        shown = f"{name}_total" if family.kind == COUNTER else name
        common = self._common if family.engine_label else {"model_name": self._common["model_name"]}
        label_sets = [labels({**common, family.label: value} if family.label else common) for value in family.numbers]
        self._parts.append(header(shown, family.kind, family.help))
        for label_set, attribute in zip(label_sets, family.numbers.values(), strict=True):
            self._parts.append(Sample(shown + label_set, getattr(stats, attribute)))
        if family.kind == COUNTER:
            created = "".join(f"{name}_created{label_set} {self._created}\n" for label_set in label_sets)
            self._parts.append(header(f"{name}_created", "gauge", family.help) + created)

    def render(self) -> bytes:
        """The page as it is now."""
        middle = [part if isinstance(part, str) else part.render() for part in self._parts]
        return "".join([self._before(), *middle, self._after()]).encode()


def _cache_config(profile: Profile, engine_label: str) -> dict[str, str]:
    blocks = profile.kv_tokens // profile.block_tokens
    filled = {
        "block_size": str(profile.block_tokens),
        "engine": engine_label,
        "concurrency": str(profile.kv_tokens / profile.context_tokens),
        "memory_bytes": str(profile.kv_tokens * profile.kv_bytes_per_token),
        "kv_tokens": str(blocks * profile.block_tokens),
        "blocks": str(blocks),
    }
    return {name: value.format(**filled) for name, value in CACHE_CONFIG.items()}
