"""The demo's machinery for real, on a morning of three minutes: a fleet in processes of its own, load over HTTP, looks."""

import pytest

from forebay.app.demo.scenario import Scenario, spec_yaml
from forebay.app.demo.story import tell
from forebay.app.demo.summary import summarise

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SHORT = Scenario(settle_s=60.0, ramp_s=60.0, day_s=30.0, fall_s=10.0, evening_s=20.0)


def test_a_short_morning_is_told_whole(tmp_path):
    seen = []
    story = tell(tmp_path / "story", spec_yaml(buffer=True), True, SHORT, seed=1, on_look=seen.append)
    summary = summarise(story, settled_s=0.0)
    assert summary.requests == len(SHORT.rows(1)) > 300
    assert (summary.truncated, summary.errors, summary.shed) == (0, 0, 0)
    assert summary.replicas_max >= 5
    assert summary.gpu_hours > 0
    assert tuple(seen) == story.looks
    assert (tmp_path / "story" / "looks.json").exists()
