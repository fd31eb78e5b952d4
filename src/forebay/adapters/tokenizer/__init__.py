"""A ``tokenizer.json`` as Hugging Face's `tokenizers` reads it. The library is optional: the extra ``exact`` brings it."""

from pathlib import Path
from typing import Any

from forebay.domain.errors import BadInput, Trouble, Unusable

INSTALL = "install it (pip install 'forebay[exact]'), or leave the tokenizer out: prompts are then estimated from their bytes"


ALLOWED = "a tokenizer.json; name one that is there"


class NoLibrary(BadInput):
    """The library `tokenizers` is not installed here."""


class FileTokenizer:
    """`ports.tokens.TokenCounter` over one file. Raises NoLibrary, or Unusable where no tokenizer at ``path`` can be read.

    ``place``: the configuration's key, for the words of the error.
    """

    def __init__(self, path: str, place: str) -> None:
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise Unusable(Trouble(place, f"no tokenizer in {path} ({(error.strerror or 'an error').lower()})", ALLOWED)) from None
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise NoLibrary(f"{place}: found no library `tokenizers`, which reads {path}; allowed: with it installed; {INSTALL}") from None
        try:
            made: Any = Tokenizer.from_file(path)
        except Exception as error:  # the library raises nothing narrower
            raise Unusable(Trouble(place, f"no tokenizer in {path} ({error})", ALLOWED)) from None
        made.no_truncation()
        made.no_padding()
        self._encode = made.encode

    def count(self, text: str) -> int:
        """Tokens of ``text``. It holds the interpreter for about 0.5 ms per 1,000 characters."""
        return len(self._encode(text, add_special_tokens=False))
