"""The one exception for what does not apply to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any, NamedTuple


class Basis:
    """What an answer was found from.

    Attributes
    ----------
    values : of data, as they were; it may be shared with other answers.
    data : those of them that this answer depends on.
    following : functions that fit numbers to the data as they are, and say if that can be done.
    """

    def __init__(self, values: dict[Any, Any]):
        self.values = values
        self.data: dict[Any, None] = {}
        self.following: dict[Callable[[], bool], None] = {}

    def add(self, data: Iterable[Any], following: Iterable[Callable[[], bool]] = ()) -> None:
        """Add data, and what follows from others."""
        for own in data:
            self.data[own] = None
            if own not in self.values:
                self.values[own] = own.get_value()
        self.following |= dict.fromkeys(following)


# Of the answers that are being found.
_FINDING: ContextVar[tuple[Basis, ...]] = ContextVar("_FINDING", default=())


def notice(*data: Any, following: Iterable[Callable[[], bool]] = ()) -> None:
    """Record data whose values the answer depends on that is being found, see `Basis`."""
    for basis in _FINDING.get():
        basis.add(data, following)


@contextmanager
def noticing(basis: Basis, *, alone: bool = False) -> Iterator[None]:
    """Record in `basis` what is noticed; `alone`, it is no part of what others depend on."""
    token = _FINDING.set((basis,) if alone else (*_FINDING.get(), basis))
    try:
        yield
    finally:
        _FINDING.reset(token)


class Declined(NotImplementedError):
    """Something of this package does not apply: what, why, and what to do instead.

    A reading keeps it in the place of what could not be read, and whoever needed that raises it.
    What the user did wrong is no matter of this class: it is a ValueError or a TypeError. Of
    reasons the `nearest` are told: `near` is 2 where all was read and a word of the model shuts it,
    a transform say, 1 where all was read, -1 where nothing was.
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
        """Pickle what it was made of."""
        return _declined, (type(self), self.what, self.why, self.instead, self.near)


def _declined(of: type[Declined], what: str, why: str, instead: str, near: int) -> Declined:
    return of(why, what=what, instead=instead, near=near)


def nearest(reasons: Iterable[Exception]) -> Declined:
    """Return the refusal with the largest `near`, the first of equals.

    Those without a text do not count. What is wrong with the model itself has a `near` of 1.
    """
    found = [
        reason if isinstance(reason, Declined) else Declined(str(reason), near=1)
        for reason in reasons
        if str(reason)
    ]
    return max(found, key=lambda reason: reason.near, default=Declined())


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
    """Return an error that holds nothing of where it was raised, nor of what its callers know."""
    own = copy(error)
    own.__traceback__ = own.__cause__ = own.__context__ = None
    return own


class Answer(NamedTuple):
    """What a reading was asked: a value or a refusal, and what it was found from."""

    value: Any
    refusal: Exception | None
    basis: Basis


def once[F: Callable[..., Any]](function: F) -> F:
    """Have a function answer once for each first argument; that something is declined, too.

    What the first argument, a reading, has been asked is kept in it, and gone with it. Data are
    evaluated by what notices them, `known_value` and `noticed_function`, and their values kept.
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
        found = answers[key]
        notice(*found.basis.data, following=found.basis.following)
        if found.refusal is not None:
            raise bare(found.refusal)
        return found.value

    return answered  # type: ignore[return-value]
