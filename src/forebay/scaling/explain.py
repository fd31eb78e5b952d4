"""A decision as rows and one line, for people who were just woken up. Data only: consoles and commands render it."""

import msgspec

from forebay.domain.scaling import Decision, Term, TermKind


class Row(msgspec.Struct, frozen=True):
    """One term of a decision."""

    name: str
    kind: str
    replicas: int
    because: str
    binding: bool


def rows(decision: Decision) -> tuple[Row, ...]:
    """The terms in the order they were considered; exactly one is binding."""
    return tuple(Row(term.name, term.kind.value, term.replicas, term.because, term.binding) for term in decision.terms)


def binding(decision: Decision) -> Term | None:
    """The term that decided; None only in a decision that no policy of ours made."""
    return next((term for term in decision.terms if term.binding), None)


def summary(decision: Decision) -> str:
    """One line such as ``chat: 5 replicas (buffer: …)``, with what is wrong at its end."""
    term = binding(decision)
    because = f" ({term.name}: {term.because})" if term is not None else ""
    noun = "replica" if decision.replicas == 1 else "replicas"
    troubles = "".join(f"; {alert.kind.value}: {alert.message}" for alert in decision.alerts)
    return f"{decision.pool}: {decision.replicas} {noun}{because}{troubles}"


def needed(decision: Decision) -> int | None:
    """Replicas that would be wanted but for the cap that binds; None where none does."""
    bound = binding(decision)
    if bound is None or bound.kind is not TermKind.CAP:
        return None
    return max([term.replicas for term in decision.terms if term.kind in {TermKind.FLOOR, TermKind.TRIGGER}], default=None)
