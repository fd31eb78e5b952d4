"""What the scenarios of the complaint list share: rivals for the pool of `test_scenarios`, told what their users would tell them, and long streams.

The list, with where each complaint was made, is in docs/complaints.md.
"""

import msgspec
import numpy as np
from test_scenarios import PROMPT, REPLICA_PER_S, poisson, pool

from forebay.domain.profile import WarmUp
from forebay.scaling.baselines import named
from forebay.scaling.baselines.aibrix import Apa, ApaSettings
from forebay.scaling.baselines.dynamo import DynamoSla, SlaSettings
from forebay.scaling.baselines.dynamo_fit import FitSettings
from forebay.scaling.baselines.frame import Framed
from forebay.scaling.baselines.keda import Keda, KedaSettings
from forebay.scaling.baselines.settings import targets
from forebay.scaling.capacity import pool_capacity

KV_IN_USE = 0.115
"""Mean KV usage at two thirds of what the pool's replicas serve within their promise."""
STREAMS = pool(prompt_tokens=500, output_tokens=2000)
"""A minute an answer, and more."""
STREAMS_PER_S = pool_capacity(STREAMS).rate_per_s


def rival(name, of, **more):
    """The registry's law for a pool, with its defaults and the pool's targets."""
    return named(of, pool_capacity(of), peak_replicas=None, **more)[name]()


def keda(of):
    """KEDA with thresholds that fit the pool: without an outage it holds the load, so that what fails is the outage."""
    told = targets(of, pool_capacity(of))
    return Framed(Keda(KedaSettings(queue_target=25.0, running_target=told.target_concurrency)), told.limits)


def apa(of, **settings):
    """AIBrix's own autoscaler, aiming at the KV usage that the pool has where it serves well."""
    return Framed(Apa(ApaSettings(target=KV_IN_USE, **settings)), targets(of, pool_capacity(of)).limits)


def dynamo(of, skip_first=0):
    """Dynamo's SLA mode as it learns what a pass takes, aiming at four fifths of the ITL: at all of it half of the tokens are late."""
    told = targets(of, pool_capacity(of))
    aimed = msgspec.structs.replace(told, itl_s=0.8 * told.itl_s)
    return Framed(DynamoSla(aimed, SlaSettings(fit=FitSettings(skip_first=skip_first))), told.limits)


def started_cold(of, passes, factor):
    """The pool with engines whose first passes are slow."""
    return msgspec.structs.replace(of, profile=msgspec.structs.replace(of.profile, warm_up=WarmUp(passes, factor)))


def streams(*pieces, seed=1):
    """As `poisson`, in replicas' worth of long answers to short prompts."""
    for chunk in poisson(*((until_s, worth * STREAMS_PER_S / REPLICA_PER_S) for until_s, worth in pieces), seed=seed):
        prompts = np.maximum(1, chunk.prompt_tokens * 500 // PROMPT).astype(np.int32)
        yield chunk._replace(prompt_tokens=prompts, output_tokens=(chunk.output_tokens * 10).astype(np.int32))


def between(result, from_s, until_s):
    """The timeline's rows of a span."""
    return [row for row in result.timeline if from_s <= row.at_s <= until_s]
