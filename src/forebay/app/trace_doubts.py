"""What to say of a trace before anybody waits for it: options that change nothing for it, and times that look like milliseconds."""

from collections.abc import Sequence
from pathlib import Path

from forebay.app.lab.recorded import is_state
from forebay.app.trace_files import NAMED, format_of, is_clients, renames
from forebay.demand import milliseconds
from forebay.demand.trace import RATE_FORMATS
from forebay.domain.errors import BadInput
from forebay.loadgen.files import lines


def doubts(
    path: Path,
    trace_format: str = "auto",
    *,
    column: str = "",
    lengths: Path | None = None,
    drawing: Sequence[str] = (),
    pool_said: bool = False,
) -> list[str]:
    """Sentences, in the order of the options; none where all that was said is used.

    ``drawing``: options that were given and say how requests are drawn from rates, as they were written (``--cv 1``).
    ``pool_said``: of a state folder, the pool is known without ``column``. Raises BadInput where ``path`` is no trace, or
    ``lengths`` can't be read, used or not.
    """
    if lengths is not None:
        _require(lengths)
    if is_state(path):
        found = _unused([one for one in drawing if one.startswith("--noise")], f"{path} has the rates as they were")
        return found + (_unused([f"--column {column}"], f"{path} is a state folder, and the pool is known") if column and pool_said else [])
    name = format_of(path, trace_format, column)
    found = _column(path, name, column)
    if name not in RATE_FORMATS:
        found += _unused(drawing, f"the requests of {path} are played as they came, nothing is drawn")
        told = milliseconds.told(lines(str(path)), name, str(path), renames(column))
        found += [told] if told else []
    elif name == "servegen" and is_clients(path):
        found += _unused(drawing, f"each client of {path} brings its own gaps")
    return found


def _require(lengths: Path) -> None:
    try:
        next(lines(str(lengths)), "")
    except BadInput as error:
        raise BadInput(f"--lengths: {error}") from None


def _column(path: Path, name: str, column: str) -> list[str]:
    if not column or name == "o365" or (name in NAMED and "=" in column):
        return []
    if name in NAMED:
        return _unused([f"--column {column}"], f"{path} is a {name}, where --column says what columns are called, such as at_s=when")
    return _unused([f"--column {column}"], f"{path} is in the format {name}, whose columns are known")


def _unused(options: Sequence[str], why: str) -> list[str]:
    return [f"{option} is not used: {why}" for option in options]
