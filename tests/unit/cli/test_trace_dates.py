"""``forebay trace stats`` tells dates where the trace has them."""

from lab_case import invoke

from forebay.cli.trace import stats


def test_the_busiest_minute_and_the_beginning_have_dates(tmp_path):
    path = tmp_path / "it.csv"
    times = [*range(0, 120, 20), *range(120, 242, 2)]
    rows = (f"2026-11-24T08:{at_s // 60:02d}:{at_s % 60:02d}+02:00,200,20" for at_s in times)
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = invoke(stats, path)
    assert result.exception is None
    assert "from Tue 24 Nov 2026 06:00 UTC" in result.stdout
    assert "busiest minute at 2m (Tue 24 Nov 2026 06:02 UTC)" in result.stdout
