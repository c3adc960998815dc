"""Whether a mechanism can have published a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import first_bad

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


def is_published(mechanism: Mechanism, value: np.ndarray) -> np.ndarray:
    """Return which entries are finite, or withheld by a mechanism that withholds."""
    value = np.asarray(value, "float64")
    good = np.isfinite(value)
    if mechanism.withholds and not good.all():
        withheld = known_value(mechanism.is_withheld(value))
        good |= True if withheld is None else withheld
    return good


def by_which_rule(mechanism: Mechanism) -> str:
    """Return advice on withheld entries, for a mechanism that does not withhold."""
    return (
        f"say by which rule, which tells of the statistic, too: "
        f"{mechanism!r}.suppressed(below=threshold), or where= for a rule that does not look at "
        f"the values"
    )


def check_attainable(
    name: str, mechanism: Mechanism, observed, statistic: TensorVariable | None = None
) -> None:
    """Refuse a value that the mechanism cannot publish, whatever the statistic is.

    Only the shape of `statistic` is used.
    """
    value = None if observed is None else known_value(pt.as_tensor(observed))
    if value is None:
        return
    if statistic is not None and mechanism.statistic_ndim:
        mechanism.check_released(name, value, statistic.type.shape[-1])
    attainable = known_value(mechanism.attainable(value))
    if attainable is not None and not np.all(attainable):
        where, place = first_bad(attainable)
        bad = np.broadcast_to(value, attainable.shape)[where]
        raise ValueError(
            f"{name!r}: {mechanism!r} cannot publish {bad}{place}: "
            f"{mechanism.why_unattainable(float(bad))}"
        )


def check_double(variables: Iterable[TensorVariable]) -> None:
    """Refuse single precision, of PyTensor's configuration or of parameters made under it."""
    if pytensor.config.floatX != "float64" or any(
        v.dtype == "float32" and v.type.ndim == 0 for v in variables
    ):
        raise ValueError(
            "pymc_dp computes in float64: set pytensor.config.floatX = 'float64' before the model "
            "is made"
        )
