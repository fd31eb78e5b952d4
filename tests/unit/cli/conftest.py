import pytest


@pytest.fixture(autouse=True)
def no_width_from_outside(monkeypatch):
    """What a test sees must not depend on the terminal, or the test runner, it was started in."""
    monkeypatch.delenv("COLUMNS", raising=False)
