"""The files that a configuration names, looked at before anything starts: the certificate, and the pools' tokenizers."""

from collections.abc import Mapping

from forebay.adapters.tokenizer import FileTokenizer, NoLibrary
from forebay.app.certificates import Certificate
from forebay.domain.errors import Unusable
from forebay.spec.types import Pool, Spec


def tokenizers(spec: Spec) -> Mapping[str, FileTokenizer]:
    """By pool, of those that name one. Raises BadInput for the first that can't be read, or where there is no library to read it."""
    return {pool.name: _tokenizer(pool) for pool in spec.pools if pool.estimate.tokenizer}


def file_troubles(spec: Spec) -> tuple[list[Unusable], list[str]]:
    """Every file that can't be used; and warnings of what is missing in this environment, which may not be the gateway's."""
    unusable: list[Unusable] = []
    warnings: list[str] = []
    if spec.tls is not None:
        try:
            Certificate(spec.tls)
        except Unusable as bad:
            unusable.append(bad)
    for pool in spec.pools:
        if pool.estimate.tokenizer:
            try:
                _tokenizer(pool)
            except Unusable as bad:
                unusable.append(bad)
            except NoLibrary as missing:
                warnings.append(str(missing))
    return unusable, warnings


def _tokenizer(pool: Pool) -> FileTokenizer:
    return FileTokenizer(pool.estimate.tokenizer, f"pools.{pool.name}.estimate.tokenizer")
