"""``forebay world`` sums up: every request has one of the ends that a client can meet."""

from forebay.app.world.run import Verdict
from forebay.cli.world import summary


def verdict(ok=True, **told):
    return Verdict(0, ok, "", sum(told.values()), told, (), 1, 1, (), ())


def test_each_request_is_counted_under_what_its_client_met():
    worlds = [verdict(complete=7, error_status=2, error_event=1, gone=4, lied=0), verdict(ok=False, complete=3)]
    assert summary(worlds) == (
        "2 worlds, 17 requests: 10 complete, 2 refused, 1 told of an error, 4 clients gone; 1 world with a broken promise"
    )


def test_one_world_is_one_and_a_lie_is_told():
    assert summary([verdict(complete=1, lied=1)]).startswith("1 world, 2 requests: 1 complete, ")
    assert "1 lied to; 0 worlds with a broken promise" in summary([verdict(complete=1, lied=1)])
