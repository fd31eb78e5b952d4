from forebay.controller.gateways import GatewayBook
from forebay.controller.wedges import WEDGED_AFTER_S, Wedges
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.roster import PoolLoad, ReplicaLoad, Snapshot
from forebay.domain.signal import Known, Unknown
from forebay.ports import EngineSignals

VIEWS = [ReplicaView("r", "chat", ReplicaState.READY, 0.0, 0.0)]


def book_with(streams):
    book = GatewayBook(1000.0)
    book.hello("g", 0.0)
    book.snapshot(Snapshot("g", 0.0, 1, 1, (PoolLoad("chat", (), (ReplicaLoad("r", streams, 100),), ()),)), 0.0)
    return book


def page(running=0.0, generated=5.0, at_s=0.0):
    return {"r": EngineSignals(waiting=Known(0.0, at_s), running=Known(running, at_s), generated_tokens_total=Known(generated, at_s))}


def waiting_after(wedges, book, pages):
    judged = {}
    for at_s, readings in pages:
        judged = wedges.judged(VIEWS, readings, book, at_s)
    return judged["r"].waiting


def test_an_engine_that_claims_to_be_idle_under_streams_is_not_believed_for_long():
    pages = [(float(at_s), page()) for at_s in range(int(WEDGED_AFTER_S) + 1)]
    assert waiting_after(Wedges(1.0), book_with(2), pages[:-1]) == Known(0.0, 0.0)
    assert waiting_after(Wedges(1.0), book_with(2), pages) == Unknown("wedged")


def test_an_idle_engine_without_streams_is_just_idle():
    assert waiting_after(Wedges(1.0), book_with(0), [(float(at_s), page()) for at_s in range(100)]) == Known(0.0, 0.0)


def test_tokens_that_come_end_the_doubt_and_so_does_a_running_request():
    moving = [(float(at_s), page(generated=float(at_s))) for at_s in range(100)]
    assert waiting_after(Wedges(1.0), book_with(2), moving) == Known(0.0, 0.0)
    running = [(float(at_s), page(running=float(at_s % 7 == 0))) for at_s in range(100)]
    assert isinstance(waiting_after(Wedges(1.0), book_with(2), running), Known)


def test_an_accelerated_world_is_given_real_time():
    pages = [(float(at_s), page()) for at_s in range(59)]
    assert isinstance(waiting_after(Wedges(20.0), book_with(2), pages), Known)
