"""A ``tokenizer.json`` as Hugging Face's `tokenizers` reads it. The library is optional: the extra ``exact`` brings it."""

from typing import Any

from forebay.domain.errors import BadInput

INSTALL = "install it (pip install 'forebay[exact]'), or leave the tokenizer out: prompts are then estimated from their bytes"


class FileTokenizer:
    """`ports.tokens.TokenCounter` over one file. Raises BadInput where the library, or a tokenizer at ``path``, isn't there.

    ``place``: the configuration's key, for the words of the error.
    """

    def __init__(self, path: str, place: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise BadInput(f"{place}: found no library `tokenizers`, which reads {path}; allowed: with it installed; {INSTALL}") from None
        try:
            made: Any = Tokenizer.from_file(path)
        except Exception as error:  # the library raises nothing narrower, for a missing file too
            raise BadInput(f"{place}: found no tokenizer in {path} ({error}); allowed: a tokenizer.json; name one that is there") from None
        made.no_truncation()
        made.no_padding()
        self._encode = made.encode

    def count(self, text: str) -> int:
        """Tokens of ``text``. It holds the interpreter for about 0.5 ms per 1,000 characters."""
        return len(self._encode(text, add_special_tokens=False))
