"""API keys of other people's engines: they stand in the environment, never in a file, so only a process can say whether they are there."""

import os
from collections.abc import Iterator, Mapping

from forebay.domain.errors import BadInput
from forebay.spec.types import Spec


def spill_keys(spec: Spec, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """By the name of their variable. Raises BadInput for the first that isn't there or can't be sent."""
    for trouble in key_troubles(spec, environment):
        raise BadInput(trouble)
    return {spill.key_env: environment[spill.key_env] for pool in spec.pools for spill in pool.overflow.spill if spill.key_env}


def key_troubles(spec: Spec, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Where a key can't be used, and why; a gateway with this environment does not start."""
    for pool in spec.pools:
        for spill in pool.overflow.spill:
            name = spill.key_env
            if not name:
                continue
            key, where = environment.get(name, ""), f"pools.{pool.name}.overflow.spill {spill.name}: key_env"
            if not key:
                yield f"{where}: found no {name} in the environment, allowed: a variable with the API key; set it"
            elif not key.isascii() or not key.isprintable() or " " in key:
                yield f"{where}: found a {name} with blanks or control characters, allowed: visible ASCII; set it anew"
