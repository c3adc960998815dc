"""The registry of mechanisms, and the examples that their conformance tests run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_dp.graphs.registry import Registry
from pymc_dp.mechanisms.base import POSTPROCESSED, Mechanism


@dataclass(frozen=True, eq=False)
class MechanismExample:
    """An instance that the conformance tests run on.

    Parameters
    ----------
    mechanism : Mechanism
        Instance with scalar parameters.
    statistic : float, default 0
        Scalar statistic to condition on.
    pieces : sequence of float
        Increasing break points of the density: it is smooth between neighbours, and less than
        1e-12 of its mass lies outside. Empty if the release is discrete.
    atoms : sequence of float
        Values with positive mass, in increasing order: all of them but for less than 1e-12 of
        the mass.
    smooth_in_statistic : bool, default True
        Whether the log density may be differentiated in the statistic.
    """

    mechanism: Mechanism
    statistic: float = 0.0
    pieces: Sequence[float] | np.ndarray = ()
    atoms: Sequence[float] | np.ndarray = ()
    smooth_in_statistic: bool = True


MECHANISMS: Registry[type[Mechanism], Callable[[], Sequence[MechanismExample]]] = Registry()


def register_mechanism(
    cls: type[Mechanism],
    *,
    examples: Callable[[], Sequence[MechanismExample]],
    how: str | None = None,
) -> None:
    """Register a mechanism class with the examples that its conformance tests run on.

    Parameters
    ----------
    cls : type
        Subclass of `Mechanism`, of a name of its own.
    examples : callable
        Returns the examples. It is called by the tests only, so importing stays cheap.
    how : str, optional
        Method of `Mechanism` that returns an instance, for a step after a release.
    """
    if not (isinstance(cls, type) and issubclass(cls, Mechanism)):
        raise TypeError(f"only subclasses of Mechanism can be registered, got {cls!r}")
    # The class of a notebook's cell is another one each time that the cell is run.
    if any(c.__name__ == cls.__name__ and c.__module__ != cls.__module__ for c in MECHANISMS):
        raise ValueError(f"{cls!r}: files know another mechanism by this name, rename it")
    MECHANISMS.add(examples, cls)
    if how is not None:
        POSTPROCESSED.add(cls, how)


def registered_mechanisms() -> tuple[type[Mechanism], ...]:
    """Return the registered mechanism classes, those of plugins last."""
    return tuple(MECHANISMS)


def mechanism_examples() -> Iterator[MechanismExample]:
    """Yield the examples of every registered mechanism."""
    for cls in registered_mechanisms():
        yield from MECHANISMS[cls]()
