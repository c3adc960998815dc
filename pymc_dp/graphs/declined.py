"""The one exception for what does not apply to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any

# Of the readings that are being asked: the data that their answers were found from.
_SEEN: ContextVar[tuple[dict[Any, Any], ...]] = ContextVar("_SEEN", default=())


def notice(data: Any) -> None:
    """Say that what is being answered was found from the values that data have now."""
    for seen in _SEEN.get():
        if data not in seen:
            seen[data] = data.get_value()


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

    def __reduce__(self):
        """Pickle what it was made of."""
        return _declined, (type(self), self.what, self.why, self.instead, self.near)


def _declined(of: type[Declined], what: str, why: str, instead: str, near: int) -> Declined:
    return of(why, what=what, instead=instead, near=near)


def nearest(reasons: Iterable[Exception]) -> Declined:
    """Return the reason of what came nearest to apply, the first of them; one without any is none.

    What is wrong with the model itself is near, too.
    """
    found = [
        reason if isinstance(reason, Declined) else Declined(str(reason), near=1)
        for reason in reasons
        if str(reason)
    ]
    return max(found, key=lambda reason: reason.near, default=Declined())


@contextmanager
def noticing(seen: dict[Any, Any], *, alone: bool = False) -> Iterator[None]:
    """Collect the data that are noticed, and their values; `alone`, no other reading sees them."""
    token = _SEEN.set((seen,) if alone else (*_SEEN.get(), seen))
    try:
        yield
    finally:
        _SEEN.reset(token)


class Unrelated(Declined):
    """An expression that pairs each record with every other."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say of what a refusal within is, that was read: `what` stands before the reason."""
    try:
        yield
    except NotImplementedError as error:
        near = max(1, getattr(error, "near", 1))
        raise Declined(f"{what}: {error}", near=near) from None


def _bare[E: Exception](error: E) -> E:
    """Return an error that holds nothing of where it was raised, nor of what its callers know."""
    own = copy(error)
    own.__traceback__ = own.__cause__ = own.__context__ = None
    return own


def once[F: Callable[..., Any]](function: F) -> F:
    """Have a function answer once for each first argument; that something is declined, too.

    What the first argument, a reading, has been asked is kept in it, and gone with it; and so are
    the values of the data that it took for fixed, see `notice`.
    """

    @wraps(function)
    def answered(reading: Any, *args: Any) -> Any:
        answers = reading.__dict__.setdefault("_answers", {})
        key = (function, *args)
        if key not in answers:
            try:
                with noticing(reading.__dict__.setdefault("seen", {})):
                    answers[key] = function(reading, *args), None
            except (Declined, ValueError) as error:
                answers[key] = None, _bare(error)
        value, refusal = answers[key]
        if refusal is not None:
            raise _bare(refusal)
        return value

    return answered  # type: ignore[return-value]
