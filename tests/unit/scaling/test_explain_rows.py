"""What `forebay explain` shows, asked by someone tired."""

from forebay.domain.scaling import Decision
from forebay.scaling.explain import binding, needed, rows, summary


def test_every_term_is_a_row_in_order_and_one_is_marked(make_pool):
    decision = make_pool(ramp_per_s2=30 / 3600, spare_replicas=1).at(0.0, per_min=100)
    found = rows(decision)
    assert [row.name for row in found] == ["min", "demand", "buffer", "spare", "kv", "queue", "max"]
    assert [row.name for row in found if row.binding] == ["spare"]
    assert found[2].because == "2 for demand + 3: a ramp of 30/min/min (declared) × 5m cold start ÷ 50/min per replica"


def test_the_summary_says_how_many_why_and_what_is_wrong(make_pool):
    pool = make_pool(min_replicas=2, max_replicas=2, buffer=False)
    pool.at(0.0, waiting=50)
    text = summary(pool.at(60.0, waiting=50))
    assert text.startswith("chat: 2 replicas (max: never more than 2; 3 would be needed (queue))")
    assert text.endswith("; pool_exhausted: 3 replicas are wanted and 2 is the most allowed")


def test_a_pool_of_attached_engines_says_how_many_it_would_need(make_pool):
    """Two attached engines with 49 waiting were "wanted 2", by a maximum that can't be raised: advice is what one attaches them for."""
    pool = make_pool(min_replicas=2, max_replicas=2, buffer=False)
    assert needed(pool.hold(600.0, per_min=60)) is None
    decision = pool.hold(1200.0, per_min=300, waiting=49)
    assert (decision.replicas, decision.reason) == (2, "max")
    told = needed(decision)
    assert told >= 6, "300/min ÷ 50/min"
    assert rows(decision)[-1].because.startswith(f"never more than 2; {told} would be needed (")
    assert decision.alerts[0].message.startswith(f"{told} replicas are wanted and 2 is the most allowed")


def test_a_full_pool_whose_queue_has_not_pulled_yet_says_what_its_demand_needs(make_pool):
    pool = make_pool(min_replicas=2, max_replicas=2, buffer=False)
    pool.hold(1200.0, per_min=300)
    pool.at(1210.0, per_min=300, waiting=49)
    decision = pool.at(1220.0, per_min=300, waiting=49)
    assert decision.alerts[0].message == f"49 requests wait, and there are never more than 2 replicas; {needed(decision)} would be needed"


def test_a_decision_of_somebody_else_has_no_binding_term():
    decision = Decision("chat", 0.0, 1, "", ())
    assert needed(decision) is None
    assert binding(decision) is None
    assert summary(decision) == "chat: 1 replica"


def test_a_hold_says_what_it_waits_for(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 4
    pool.at(0.0)
    assert "calm for 5m of 15m" in summary(pool.hold(300))
