"""The ledger of a gateway that runs alone, and how it ends."""

import asyncio
import random
import threading

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app import config, own_ledger
from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.shape import Usage
from forebay.domain.usage import How
from forebay.gateway.service import Gateway
from forebay.testing.events import ListSink
from forebay.testing.store import MemoryStore

FILE = """
pools:
  chat: {model: llama-3.1-8b, profile: own, attach: ["http://127.0.0.1:9"]}
profiles:
  own: {base: llama-3.1-8b-h100, sequences: 4}
"""


def test_a_gateway_that_ends_while_a_batch_is_written_writes_nothing_twice_at_once_and_loses_no_entry(tmp_path, monkeypatch):
    begun, goes_on, inside, most = threading.Event(), threading.Event(), [0], [0]

    class SlowStore(MemoryStore):
        def __init__(self, _path):
            super().__init__()

        def append_usage(self, batch, wall_s):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            begun.set()
            goes_on.wait(5)
            taken = super().append_usage(batch, wall_s)
            inside[0] -= 1
            return taken

    monkeypatch.setattr(own_ledger, "SqliteStore", SlowStore)
    path = tmp_path / "forebay.yaml"
    path.write_text(FILE)

    async def main():
        clock, upstream, sink, chance = LoopClock(1.0), HttpUpstream(), ListSink(), random.Random(1)
        gateway = Gateway(config.load(path), clock, RandomIds(), upstream, chance, sink, "gw")
        ledger = own_ledger.OwnLedger(GatewaySystem(gateway, upstream, clock, sink, chance), tmp_path)

        def count():
            gateway.usage.count(("search", "llama", "interactive", "chat"), How.COMPLETED, Usage(3, 2), 0.0, clock.wall_s())

        count()
        running = asyncio.create_task(ledger.run())
        await asyncio.to_thread(begun.wait, 5)
        count()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        asyncio.get_running_loop().call_later(0.02, goes_on.set)
        await ledger.close()
        assert most == [1]
        assert gateway.usage.unreported_requests == 0
        await gateway.close()

    asyncio.run(main())
