"""What attached engines say where nothing runs yet: whether each is there, takes its key, and serves what the configuration says.

Asked for by `forebay check --engines`; each engine gets one or two small requests, and none that costs a token.
"""

import asyncio

from forebay.adapters.local.health import asks_key
from forebay.adapters.upstream import HttpUpstream
from forebay.app.engine_keys import EngineKeys
from forebay.app.first_look import ANSWER_REAL_S, AT_ONCE_MAX, BODY_BYTES_MAX, MODELS_PATH, differences, served
from forebay.domain.errors import BadInput
from forebay.domain.replica import attached_id
from forebay.domain.roster import Capacity, RosterReplica
from forebay.ports.upstream import ASKS_KEY, End, FetchFailed, fetch, get_request
from forebay.spec.engine_keys import refused
from forebay.spec.types import Pool, Spec

_ANY = Capacity(0, 0, 0, 0.0, 0.0, 0)


def engine_troubles(spec: Spec) -> list[str]:
    """What is not as it should be, in the order of the file; engines whose keys can't be read here aren't asked."""
    return asyncio.run(_all(spec))


async def _all(spec: Spec) -> list[str]:
    upstream, at_once = HttpUpstream(), asyncio.Semaphore(AT_ONCE_MAX)
    try:
        EngineKeys(spec, upstream.authorize)
    except BadInput:
        return ["no engine was asked: a key that one of them may need is not there"]

    async def one(pool: Pool, url: str) -> list[str]:
        async with at_once:
            return await _asked(upstream, pool, url)

    told = await asyncio.gather(*(one(pool, url) for pool in spec.pools for url in pool.engine.attach))
    await upstream.close()
    return [words for each in told for words in each]


async def _asked(upstream: HttpUpstream, pool: Pool, url: str) -> list[str]:
    name = attached_id(pool.name, url)
    try:
        status, body = await fetch(upstream, url, get_request(url, MODELS_PATH), BODY_BYTES_MAX, ANSWER_REAL_S)
    except FetchFailed as failed:
        if failed.end is End.REFUSED:
            return [f"{name}: nobody listens at {url}; start the engine, or correct the address"]
        return [f"{name} at {url} did not answer {MODELS_PATH} ({failed}); it has {ANSWER_REAL_S:g} s"]
    if status not in ASKS_KEY:
        status = await asks_key(upstream, url, pool.engine.metrics, ANSWER_REAL_S) or status
    if status in ASKS_KEY:
        return [f"{name} {refused(pool, url, status)}"]
    if status != 200:
        return [f"{name} at {url} answered {status} to {MODELS_PATH}; is it the engine's address?"]
    models = served(body)
    return [words for _, words in differences(pool, RosterReplica(name, url, _ANY), models)] if models else []
