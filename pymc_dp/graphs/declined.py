"""`Declined`, the exception for what does not apply to a model, and answers that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any, NamedTuple


class Basis:
    """What an answer depends on.

    Attributes
    ----------
    values : the values of data when they were read; answers may share this dictionary.
    data : the data that this answer depends on.
    following : functions that set numbers by the current data; they return whether they could.
    """

    def __init__(self, values: dict[Any, Any]):
        self.values = values
        self.data: dict[Any, None] = {}
        self.following: dict[Callable[[], bool], None] = {}

    def add(self, data: Iterable[Any], following: Iterable[Callable[[], bool]] = ()) -> None:
        """Add data, and functions that follow further data."""
        for variable in data:
            self.data[variable] = None
            if variable not in self.values:
                self.values[variable] = variable.get_value()
        self.following |= dict.fromkeys(following)


# The bases of the answers that are being computed, the outermost first.
_FINDING: ContextVar[tuple[Basis, ...]] = ContextVar("_FINDING", default=())


def notice(*data: Any, following: Iterable[Callable[[], bool]] = ()) -> None:
    """Record that the answers being computed depend on the values of data; see `Basis`."""
    for basis in _FINDING.get():
        basis.add(data, following)


@contextmanager
def noticing(basis: Basis, *, alone: bool = False) -> Iterator[None]:
    """Record in `basis` the data that this block notices; if `alone`, in no outer basis."""
    token = _FINDING.set((basis,) if alone else (*_FINDING.get(), basis))
    try:
        yield
    finally:
        _FINDING.reset(token)


class Declined(NotImplementedError):
    """Something of this package does not apply: what, why, and what to do instead.

    A reading keeps it as the answer to a question, and raises it whenever that is asked. Mistakes
    of the user are a ValueError or a TypeError instead. Of several refusals users see the
    `nearest`: `near` is 2 where all was read and one argument of the model stands in the way, a
    transform say, 1 where all was read, -1 where nothing was.
    """

    def __init__(self, why: str = "", *, what: str = "", instead: str = "", near: int = 0):
        self.what, self.why, self.instead, self.near = what, why, instead, near
        message = f"{what}: {why}" if what else why
        super().__init__(f"{message}. {instead}" if instead else message)

    def __copy__(self):
        """Copy what it says, without writing it anew."""
        copied = type(self).__new__(type(self), *self.args)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self):
        """Pickle the arguments."""
        return _declined, (type(self), self.what, self.why, self.instead, self.near)


def _declined(kind: type[Declined], what: str, why: str, instead: str, near: int) -> Declined:
    return kind(why, what=what, instead=instead, near=near)


def nearest(reasons: Iterable[Exception]) -> Declined:
    """Return the refusal with the largest `near`, the first of equals.

    Refusals without a text are left out. Other errors concern the model: their `near` is 1.
    """
    refusals = [
        reason if isinstance(reason, Declined) else Declined(str(reason), near=1)
        for reason in reasons
        if str(reason)
    ]
    return max(refusals, key=lambda reason: reason.near, default=Declined())


def first_line(error: Exception) -> str:
    """Return the first line of an error, or its name where it has no text, without a full stop."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(" .")


class Unrelated(Declined):
    """An expression that pairs each record with every other."""


@contextmanager
def about(what: str, instead: str = "") -> Iterator[None]:
    """Put `what` before the text of a refusal raised in this block, and `instead` behind it."""
    try:
        yield
    except NotImplementedError as error:
        near = max(1, getattr(error, "near", 1))
        raise Declined(f"{what}: {error}", instead=instead, near=near) from None


def bare[E: Exception](error: E) -> E:
    """Return a copy of an error without its traceback and context, which would keep frames."""
    stripped = copy(error)
    stripped.__traceback__ = stripped.__cause__ = stripped.__context__ = None
    return stripped


class Answer(NamedTuple):
    """The answer to a question: a value or a refusal, and what it depends on."""

    value: Any
    refusal: Exception | None
    basis: Basis


def once[F: Callable[..., Any]](function: F) -> F:
    """Cache a function of a reading, its refusals included.

    Answers are kept in the first argument, the reading, and go with it. The function evaluates data
    by `known_value` or `noticed_function`, which record that the answer depends on their values.
    """

    @wraps(function)
    def answered(reading: Any, *args: Any) -> Any:
        answers = reading.__dict__.setdefault("answers", {})
        key = (function, *args)
        if key not in answers:
            basis = Basis(reading.__dict__.setdefault("values", {}))
            try:
                with noticing(basis):
                    answers[key] = Answer(function(reading, *args), None, basis)
            except (Declined, ValueError) as error:
                answers[key] = Answer(None, bare(error), basis)
        answer = answers[key]
        notice(*answer.basis.data, following=answer.basis.following)
        if answer.refusal is not None:
            raise bare(answer.refusal)
        return answer.value

    return answered  # type: ignore[return-value]
