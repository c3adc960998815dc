"""Counts rounded to a base at random, as statistical agencies do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms.arguments import as_float, as_integer, nan_outside_unit
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class RandomRounding(Mechanism):
    r"""Release a count rounded at random to one of the two nearest multiples of a base.

    It is unbiased: with :math:`r = s \bmod b`, the release is :math:`s - r` with probability
    :math:`1 - r / b` and :math:`s - r + b` else, so that

    .. math::

        \eta(z \mid s) = \max\left(0,\; 1 - \frac{|z - s|}{b}\right), \qquad
        z / b \in \mathbb{Z}.

    A multiple of the base stays as it is. Statistics Canada (base 5), Stats NZ (base 3) and the
    Australian Bureau of Statistics publish counts so. It is not differentially private: which
    releases are possible depends on the value.

    ========  ==========================
    Support   multiples of b
    Mean      :math:`s`
    Variance  :math:`r (b - r)`
    ========  ==========================

    Parameters
    ----------
    base : int
        Base b, at least 2.

    Raises
    ------
    TypeError
        A base that is no integer.
    ValueError
        A base below 2.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_dp as dp
    >>> np.exp(dp.RandomRounding(5).logp([5, 10, 7], 7).eval()).round(4)
    array([0.6, 0.4, 0. ])
    """

    base: int

    def __post_init__(self) -> None:
        """Validate the base."""
        base = as_integer(self.base, mechanism="RandomRounding", name="base")
        if base < 2:
            raise ValueError(
                f"RandomRounding: base must be at least 2, got {base}. Write the number of which "
                "all published counts are multiples."
            )
        object.__setattr__(self, "base", base)

    @property
    def spacing(self) -> float:
        """Distance between neighbouring releases."""
        return float(self.base)

    @property
    def log_concave(self) -> bool:
        """The probability of an interval is a trapezium in the statistic, which is log-concave."""
        return True

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        share = as_float(statistic) / self.base
        rng, u = pt.random.uniform(pt.zeros_like(share), 1.0, rng=rng, return_next_rng=True)
        return rng, (self.base * pt.floor(share + u)).astype("int64")

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the multiples in an interval; see `Mechanism.log_interval`."""
        share = as_float(statistic) / self.base
        below = pt.floor(share)
        up = share - below
        low, high = pt.ceil(as_float(lower) / self.base), pt.floor(as_float(upper) / self.base)
        down = pt.switch((low <= below) & (high >= below), 1.0 - up, 0.0)
        above = pt.switch((low <= below + 1.0) & (high >= below + 1.0), up, 0.0)
        mass = down + above
        return pt.switch(mass > 0, pt.log(pt.switch(mass > 0, mass, 1.0)), -np.inf)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p = as_float(p)
        share = as_float(statistic) / self.base
        below = pt.floor(share)
        # Both sides of the comparison are rounded.
        quantile = pt.switch(p <= 1.0 - (share - below) + 1e-15, below, below + 1.0)
        return nan_outside_unit(self.base * quantile, p)

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        return f"all its releases are multiples of {self.base}"

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"RandomRounding({self.base})"


def _examples() -> Sequence[MechanismExample]:
    return [
        MechanismExample(RandomRounding(5), 7, atoms=(5, 10), smooth_in_statistic=False),
        MechanismExample(RandomRounding(3), -7, atoms=(-9, -6), smooth_in_statistic=False),
    ]


register_mechanism(RandomRounding, examples=_examples)
