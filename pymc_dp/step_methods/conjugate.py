"""Conjugate Gibbs updates, put together from what the prior and each child contribute.

A conjugate family has natural parameters that add up over the prior and the children of a
parameter; the modules of `pymc_dp.step_methods.conjugacy` say which priors and
children belong to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

import pymc_dp.step_methods.conjugacy  # noqa: F401 (its modules register themselves)
from pymc_dp.graphs.compiled import Piece
from pymc_dp.graphs.declined import Declined, once
from pymc_dp.kernels import key_of
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, children
from pymc_dp.step_methods.base import DPStep, LoopDraw, in_a_row, infeasible, point_function
from pymc_dp.step_methods.conjugacy.registry import (
    CHILDREN,
    FAMILIES,
    PRIORS,
    Contribution,
    find_families,
)
from pymc_dp.step_methods.registry import STEPS, accepted, concerned

__all__ = ["ConjugateGibbs", "conditional"]


@once
def conditional(reading: Reading, rv: TensorVariable) -> tuple[str, tuple[TensorVariable, ...]]:
    """Return the family and (first, second, lower, upper) of a parameter's full conditional.

    Raises
    ------
    Declined
        Naming the prior or the child without a conjugate pair.
    """
    op = rv.owner.op
    families = find_families(op)
    if not families:
        names = [prior.__name__.removesuffix("RV") for _, prior in PRIORS]
        raise Declined(
            f"{rv.name!r} has the prior {op}; there are conjugate updates for "
            f"{', '.join(dict.fromkeys(names))}"
        )
    if rv.type.ndim != op.ndim_supp:
        raise Declined(
            f"{rv.name!r} is not a scalar"
            if op.ndim_supp == 0
            else f"{rv.name!r} is a batch of vectors, not one vector"
        )
    check_transform(reading.model, rv)  # another transform may cut the support
    offspring = children(reading, rv)
    # Families without a rule for each child are left out: their reasons would only distract.
    fitting = {f: p for f, p in families.items() if all(_pair(f, child) for child in offspring)}
    reasons = []
    for family, prior in (fitting or families).items():
        try:
            return family, _combine(_contributions(reading, rv, offspring, family, prior))
        except Declined as error:
            reasons.append(str(error))
    raise Declined(f"{rv.name!r} has no conjugate update: {'; '.join(dict.fromkeys(reasons))}")


def _pair(family: str, child: TensorVariable) -> Callable | None:
    return None if child.owner is None else CHILDREN.get((family, type(child.owner.op)))


def _contributions(reading: Reading, rv, offspring, family, prior) -> list[Contribution]:
    parts = []
    for child in offspring:
        pair = _pair(family, child)
        if pair is None:
            raise Declined(f"its child {child.name!r} is not conjugate to its prior")
        # A free child is read from the point, its value transformed back.
        value = child if child in reading.model.free_RVs else reading.model.rvs_to_values[child]
        parts.append(pair(rv, child, value))
    return [prior(rv), *parts]


def _combine(parts: Sequence[Contribution]) -> tuple[TensorVariable, ...]:
    first = sum((p.first for p in parts[1:]), start=pt.as_tensor(parts[0].first))
    second = sum((p.second for p in parts[1:]), start=pt.as_tensor(parts[0].second))
    lower, upper = pt.as_tensor(-math.inf), pt.as_tensor(math.inf)
    for p in parts:
        lower = lower if p.lower is None else pt.maximum(lower, p.lower)
        upper = upper if p.upper is None else pt.minimum(upper, p.upper)
    return first, second, lower, upper


@STEPS.register(order=70)
class ConjugateGibbs(DPStep):
    r"""Draw parameters from their conjugate full conditionals [1]_, one after the other.

    The parameters are scalars, or one vector of probabilities each. Their children, observed or
    not, are records, statistics or other parameters:

    ==========================  =========================================================
    prior                       children
    ==========================  =========================================================
    Normal, Flat                Normal with a location that is linear in it
    InverseGamma                Normal (variance), Exponential, Gamma (scale), each
                                proportional to it; Poisson, InverseGamma, inversely
    Gamma, Exponential          Normal (precision), Exponential, Gamma, Poisson (rate),
                                InverseGamma (scale), each proportional to it
    Beta, Uniform(0, 1)         Bernoulli, Binomial, Geometric, NegativeBinomial
    Dirichlet                   Categorical, Multinomial
    Uniform                     those of Normal, InverseGamma and Gamma priors, and of a
                                standard deviation, by a draw cut to its bounds
    HalfFlat                    those of InverseGamma and Gamma priors, and of a
                                standard deviation
    ==========================  =========================================================

    A prior of a mean that scales with the variance (normal-inverse-gamma) is covered by both.
    Where a release states bounds of the records, the draws are cut to the feasible region.

    For example, for records :math:`x_i \sim \mathrm{Exponential}(\lambda)` and
    :math:`\lambda \sim \mathrm{Gamma}(a, b)`, the draw is from
    :math:`\mathrm{Gamma}(a + n, b + \sum_i x_i)`.

    Parameters
    ----------
    vars : list of TensorVariable
        Parameters of the model.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] A. Gelman, J. Carlin, H. Stern, D. Dunson, A. Vehtari, D. Rubin (2013). Bayesian data
       analysis, 3rd edition: chapters 2, 3 and 11.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     x = pm.Normal("x", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> step = dp.ConjugateGibbs([mu], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())  # mu given the records, all of which are 30
    >>> bool(abs(point["mu"] - 30) < 5 * 17 / 43**0.5)
    True
    """

    name = "dp_conjugate"

    @classmethod
    def claims(cls, reading, left):
        """Claim parameters with a conjugate update."""
        return [accepted(partial(conditional, reading), concerned(reading, left))]

    def _read(self, reading, rv, initial_point):
        family, natural = conditional(reading, rv)
        return point_function(reading.model, in_a_row(natural)), FAMILIES[family]

    def _draw(self, name, point, row_at, draw):
        row = row_at(point)
        if not row[-2] < row[-1]:  # the range
            raise infeasible(name)
        drawn = draw(self.rng, row)
        return drawn if np.ndim(point[name]) else drawn[0]

    @classmethod
    def loop_draws(cls, reading, group):
        """See `DPStep.loop_draws`."""
        draws = []
        for rv in group:
            family, natural = conditional(reading, rv)
            row = in_a_row(natural)
            row = pt.switch(row[-2] < row[-1], row, np.nan)  # the range
            draw = FAMILIES[family]
            draws.append(LoopDraw((rv,), [row], Piece(draw, key_of(draw))))
        return draws
