"""How the kernel is compiled: every function into its callers, and only entries are kept on disk, by a name that follows all their code.

numba's cache looks at the file of the function that is kept, not at the files of those compiled into it, and would go on
running old code after one of them was changed. So an entry closes over a digest of every kernel function's code and constants.
"""

import hashlib
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit
_digest = hashlib.sha256()


def kernel(function: F) -> F:
    """Compile ``function`` into those that call it. Python can't call it: leaving out the wrappers saves a third of the time."""
    also_digest(_spelled(function.__code__))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, int | float):
            also_digest(f"{name}={value!r}")
    return cast(F, _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def entry(function: F) -> F:
    """Compile a function that Python calls; kept on disk where there is a place for it."""
    try:
        return cast(F, _njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written: compiled anew in every process.
        return cast(F, _njit(error_model="numpy")(function))


def also_digest(what: str) -> None:
    """Something else that the compiled code hangs on."""
    _digest.update(what.encode())


def digest() -> int:
    """Names all that the kernel has been made of so far."""
    return int.from_bytes(_digest.digest()[:4], "big")


def _spelled(code: CodeType) -> str:
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
