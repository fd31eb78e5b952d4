"""An engine with a store of responses, for tests of what goes on in the background."""

import asyncio
import json

TARGET = "/v1/responses"
ASK = {"model": "llama", "input": "hi", "max_output_tokens": 20, "background": True}
USAGE = {"input_tokens": 7, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 4}}


class Keeper:
    """What it was asked goes on until a test says that it is over.

    ``first``: answers what begins one, instead of the usual; ``says``: what asks for one.
    """

    def __init__(self, status="queued", first=None):
        self.status, self.first, self.says = status, first, None
        self.kept = {}
        self.asked = []

    async def __call__(self, seen, answer):
        method, path, _ = seen.line.decode().split(" ")
        self.asked.append((method, path))
        name = path.removeprefix(TARGET).strip("/").split("/")[0]
        if not name:
            await (self.first or whole)(self, seen, answer)
        elif self.says is not None:
            await self.says(self, seen, answer)
        elif name not in self.kept:
            answer.json(404, {"error": {"message": f"Response with id '{name}' not found.", "type": "NotFoundError", "code": 404}})
        else:
            if path.endswith("/cancel"):
                self.kept[name]["status"] = "cancelled"
            answer.json(200, self.kept.pop(name) if method == "DELETE" else self.kept[name])

    def made(self, seen):
        """One is begun."""
        named = f"resp_{len(self.kept)}"
        asked = bool(seen.json().get("background"))
        self.kept[named] = {"id": named, "object": "response", "status": self.status, "background": asked, "usage": None}
        return self.kept[named]

    def over(self, status="completed", usage=USAGE, name="resp_0", **more):
        """It has ended."""
        self.kept[name].update({"status": status, "usage": usage, **more})

    def asked_for(self, method="GET"):
        """Paths of responses that were asked for so."""
        return [path for asked, path in self.asked if asked == method and path != TARGET]


async def whole(keeper, seen, answer):
    """At once, as it stands."""
    answer.json(200, keeper.made(seen))


def streamed(first_after_s=0.0):
    """A token each 10 ms, until it is over."""

    async def script(keeper, seen, answer):
        response = keeper.made(seen)
        answer.stream()
        event(answer, "response.created", sequence_number=0, response=response)
        await asyncio.sleep(first_after_s)
        while response["status"] == keeper.status and not answer.gone.is_set():
            event(answer, "response.output_text.delta", sequence_number=1, item_id="m", delta=" water")
            await asyncio.sleep(0.01)
        if not answer.gone.is_set():
            event(answer, "response.completed", sequence_number=2, response=response)
            answer.raw(b"0\r\n\r\n")

    return script


def event(answer, kind, **fields):
    answer.chunk(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()))
