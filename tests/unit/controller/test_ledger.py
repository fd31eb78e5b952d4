"""The ledger's desk: what it takes is safe, what it can't keep it does not acknowledge."""

from forebay.controller.ledger import Ledger
from forebay.controller.sturdy import SturdyStore
from forebay.domain.usage import COUNTS, UsageBatch, UsageMark, UsageRow
from forebay.testing.store import MemoryStore

ROW = UsageRow(20_000, ("search", "llama", "interactive", "chat"), (1,) * COUNTS)


class Wall:
    def wall_s(self):
        return 1.0


def ledger():
    store, said = MemoryStore(), []
    return Ledger(SturdyStore(store, lambda *words: None), Wall(), lambda *words: said.append(words)), store, said


def test_a_batch_is_acknowledged_once_it_is_kept():
    desk, store, said = ledger()
    batch = UsageBatch("gw", "j", 0, 3, (ROW,))
    assert desk.take(batch) == UsageMark("j", 3)
    assert desk.take(batch) == UsageMark("j", 3)
    assert (list(store.usage()), said) == ([ROW], [])


def test_a_full_disk_acknowledges_nothing_and_the_same_batch_counts_once_it_has_room():
    desk, store, _ = ledger()
    batch = UsageBatch("gw", "j", 0, 3, (ROW,))
    store.broken = True
    assert desk.take(batch) is None
    store.broken = False
    assert desk.take(batch) == UsageMark("j", 3)
    assert list(store.usage()) == [ROW]


def test_what_an_earlier_ledger_took_and_this_one_lacks_is_said():
    desk, _, said = ledger()
    assert desk.take(UsageBatch("gw", "j", 40, 41, (ROW,))) == UsageMark("j", 41)
    assert said[0][0] == "usage_missing"
    assert said[0][1].startswith("40 requests of gateway gw")
