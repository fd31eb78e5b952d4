"""Secrets: API keys of other people's engines, and what gateways join by.

They stand in the environment, never in a file, so only a process can say whether they are there.
"""

import ipaddress
import os
from collections.abc import Iterator, Mapping

from forebay.domain.errors import BadInput
from forebay.domain.joining import SECRET_CHARS_MIN
from forebay.spec.engine_keys import shown
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
                yield f"{where}: found no {shown(name)} in the environment, allowed: a variable with the API key; set it"
            elif not key.isascii() or not key.isprintable() or " " in key:
                yield f"{where}: found a {shown(name)} with blanks or control characters, allowed: visible ASCII; set it anew"


def join_secret(spec: Spec, environment: Mapping[str, str] = os.environ) -> str:
    """What gateways and controller prove to each other; empty where nothing is asked. Raises BadInput where it isn't there, or short."""
    name = spec.join_secret_env
    secret = environment.get(name, "") if name else ""
    if name and len(secret) < SECRET_CHARS_MIN:
        found = f"a {name} of {len(secret)} characters" if secret else f"no {name}"
        raise BadInput(
            f"gateway.join_secret_env: found {found} in the environment, allowed: a variable with {SECRET_CHARS_MIN} characters or more, "
            "the same for the controller and all gateways; make one with `openssl rand -hex 32`"
        )
    return secret


def join_troubles(spec: Spec, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Warnings of what is open, or lacking in this environment."""
    try:
        join_secret(spec, environment)
    except BadInput as error:
        yield str(error)
    if spec.join is not None and not spec.join_secret_env and not _is_loopback(spec.join.host):
        yield (
            f"gateway.join: found {spec.join.host}:{spec.join.port} without a secret: whoever reaches it can join, and be sent requests; "
            "name one with gateway.join_secret_env"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
