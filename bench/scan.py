"""CPU of reading 200 metrics pages of 53 kB: the scan against the standard parser, in one run on one machine.

python bench/scan.py [--pages 200] [--page FILE] [--json PATH]
"""

import argparse
import json
import sys
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from forebay.adapters.scrape import scan
from forebay.domain.signal import Known

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT.parent / "shared" / "reference" / "engine_pages" / "metrics_vllm_waiting.txt"
OWN = ROOT / "tests" / "fixtures" / "pages" / "vllm_two_engines.txt"
PAGE_BYTES = 53_000
ROUNDS = 5
PARSED_MAX = 20


def page_of(path: Path | None) -> tuple[bytes, str]:
    """A recorded page where there is one, else this repository's, filled up to a real page's size with lines like its own."""
    if path is not None:
        return path.read_bytes(), path.name
    if RECORDED.is_file():
        return RECORDED.read_bytes(), RECORDED.name
    page = OWN.read_bytes()
    filler = b"".join(
        b'http_request_duration_seconds_bucket{handler="/v1/completions",le="%d.0",method="POST"} 1.0\n' % n for n in range(600)
    )
    middle = page.index(b"# TYPE vllm:cache_config_info")
    return page[:middle] + filler[: PAGE_BYTES - len(page)].rpartition(b"\n")[0] + b"\n" + page[middle:], f"{OWN.name}, filled up"


def cpu_s(work) -> float:
    """The least CPU seconds of a few rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pages", type=int, default=200)
    options.add_argument("--page", type=Path)
    options.add_argument("--json", default="")
    given = options.parse_args()
    page, name = page_of(given.page)
    assert isinstance(scan(page, 0.0).signals.waiting, Known), f"{name} says nothing of waiting requests"
    text = page.decode()
    parsed = min(given.pages, PARSED_MAX)
    scan_ms = cpu_s(lambda: [scan(page, 0.0) for _ in range(given.pages)]) * 1000
    parse_ms = cpu_s(lambda: [list(text_string_to_metric_families(text)) for _ in range(parsed)]) * 1000 * given.pages / parsed
    result = {
        "page": name,
        "page_bytes": len(page),
        "pages": given.pages,
        "scan_ms": round(scan_ms, 2),
        "parser_ms": round(parse_ms, 1),
        "ratio": round(parse_ms / scan_ms, 1),
    }
    if given.json:
        output = json.dumps(result, indent=2) + "\n"
        sys.stdout.write(output) if given.json == "-" else Path(given.json).write_text(output)
        if given.json == "-":
            return
    print(
        f"{given.pages} pages of {len(page) / 1000:.0f} kB ({name}): scan {scan_ms:.1f} ms CPU, prometheus_client's parser {parse_ms:.0f} ms: {parse_ms / scan_ms:.0f}×"
    )


if __name__ == "__main__":
    main()
