"""The hot path of streams in C, where a compiler was there to build it; else, or where FOREBAY_PURE is set, the same in Python.

This room looks at one variable of the environment and at its own folder, once, when it is imported. What is older than
its source is not used: it says so, and how to build it.
"""

import importlib
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from forebay.native import pure
from forebay.native.build import hash_of
from forebay.native.compiled import SUFFIX, is_whole

SOURCE = Path(__file__).with_name("relay.c")
BUILT = "forebay.native._relay"


def chosen(source: Path = SOURCE, built: str = BUILT, wanted: str = "") -> tuple[ModuleType, str]:
    """The module to use, and what to tell of it. ``wanted``: what FOREBAY_PURE says; anything but nothing and 0 is Python."""
    if wanted not in ("", "0"):
        return pure, "Python, as FOREBAY_PURE says"
    try:
        file = source.with_name(f"{built.rpartition('.')[2]}{SUFFIX}")
        if file.is_file() and not is_whole(file):
            raise ImportError(f"{file} is cut off")
        module = importlib.import_module(built)
    except ModuleNotFoundError:
        return pure, "Python, C was not built"
    except ImportError as error:
        warnings.warn(
            f"streams are relayed in Python, {built} can't be loaded: {error}; build it with `python -m forebay.native.build`", stacklevel=2
        )
        return pure, "Python, C can't be loaded"
    if source.is_file() and hash_of(source) != module.SOURCE:
        warnings.warn(
            f"streams are relayed in Python, {built} is older than {source.name}: build it with `python -m forebay.native.build`",
            stacklevel=2,
        )
        return pure, "Python, C is older than its source"
    return module, "C"


_module, RELAYED_IN = chosen(wanted=os.environ.get("FOREBAY_PURE", ""))
if TYPE_CHECKING:
    from forebay.native.pure import Poller as Poller
    from forebay.native.pure import Reads as Reads
    from forebay.native.pure import Seat as Seat
    from forebay.native.pure import Takes as Takes
    from forebay.native.pure import framed as framed
    from forebay.native.pure import names_media as names_media
    from forebay.native.pure import nested as nested
    from forebay.native.pure import string_end as string_end
else:
    Reads, Takes, framed, names_media = _module.Reads, _module.Takes, _module.framed, _module.names_media
    nested, string_end = _module.nested, _module.string_end
    # Of these Python's own are only what C's are held to: they would save nothing.
    Poller, Seat = getattr(_module, "Poller", pure.Poller), getattr(_module, "Seat", pure.Seat)
POLLS = Poller is not pure.Poller
"""Whether reading streams in turns is cheaper than to have the event loop read each."""
