r"""The loop of steps with the Gamma rates of Poisson counts integrated out, entry by entry.

Where :math:`x_i \sim \mathrm{Poisson}(c_i \lambda_i)` and
:math:`\lambda_i \sim \mathrm{Gamma}(\alpha_i, \beta_i)`, of shape and rate, feeds nothing else,

.. math::

    x_i \sim \mathrm{NegativeBinomial}\Bigl(\alpha_i, \frac{\beta_i}{\beta_i + c_i}\Bigr), \qquad
    \lambda_i \mid x_i \sim \mathrm{Gamma}(\alpha_i + x_i, \beta_i + c_i),

with PyMC's parameters n and p. The first law is sampled: alpha and beta mix faster without the
rates. These are then drawn from the second.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import GammaRV, PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about, once
from pymc_dp.graphs.powers import power
from pymc_dp.graphs.shapes import known_shape, lengths, require_entry_each
from pymc_dp.graphs.substitution import substitute
from pymc_dp.ladder.collapse import rebuilt
from pymc_dp.laws.sum_law import Change
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, children, privatized
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.steps_chain import StepsChain, loop_plan
from pymc_dp.routes.warm_up import run_tuned

_NAME = "steps in one loop, rates integrated out"
_ALPHA, _BETA = "{}__shape", "{}__rate"  # parameters of the rates, of the sampled model alone


def _counts_and_exposure(
    reading: Reading, rate: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return the counts of a rate, and c; decline what is not of this form."""
    offspring = children(reading, rate)
    if len(offspring) != 1 or not isinstance(getattr(offspring[0].owner, "op", None), PoissonRV):
        raise Declined(f"{rate.name!r} does not feed Poisson counts and nothing else")
    [counts] = offspring
    if counts not in privatized(reading):
        raise Declined(f"the counts {counts.name!r} are not released")
    [mean] = counts.owner.op.dist_params(counts.owner)
    with about(f"the mean of {counts.name!r}"):
        require_entry_each(mean, [rate])
    if not known_shape(counts) == known_shape(mean) == lengths(rate):
        raise Declined(f"the counts {counts.name!r} have no rate each in {rate.name!r}")
    if power(mean, rate, positive=True) != 1:
        raise Declined(f"the mean of {counts.name!r} is not proportional to {rate.name!r}")
    check_transform(reading.model, rate)
    return counts, substitute(mean, {rate: pt.ones(lengths(rate), rate.dtype)})


@once
def marginalized(reading: Reading) -> tuple[Reading, list[TensorVariable]]:
    """Return the reading of the model without the rates, and these."""
    model, change = reading.model, Change()
    rates, reasons = [], ["it is for Gamma rates of released counts"]
    for rate in model.free_RVs:
        if not isinstance(rate.owner.op, GammaRV) or rate.type.ndim == 0:
            continue
        try:
            counts, c = _counts_and_exposure(reading, rate)
            if counts.name in change.transforms:
                raise Declined(f"the counts {counts.name!r} have another rate")
        except Declined as why:
            reasons.append(str(why))
            continue
        alpha, scale = rate.owner.op.dist_params(rate.owner)
        shape = known_shape(rate)
        law = pm.NegativeBinomial.dist(n=alpha, p=1.0 / (1.0 + scale * c), shape=shape)
        change.transforms[str(counts.name)] = (law, None)
        for form, graph in ((_ALPHA, alpha + counts), (_BETA, 1.0 / scale + c)):
            name = form.format(rate.name)
            if name in model.named_vars:
                raise Declined(f"the model has a variable {name!r}")
            change.deterministics[name] = pt.broadcast_to(graph, shape)
            change.entries_of[name] = rate
        rates.append(rate)
    if not rates:
        raise Declined(reasons[-1])
    return Reading(rebuilt(reading, rates, change), reading), rates


class RatesChain(StepsChain):
    """The chain of the model without the rates, which draws these, too."""

    def __init__(self, reading: Reading):
        sampled, self._rates = marginalized(reading)
        super().__init__(sampled)

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, those of the rates among them."""
        draws = super().posterior(rows, rng)
        for rate in map(str, [rv.name for rv in self._rates]):
            alpha, beta = (draws.pop(form.format(rate)) for form in (_ALPHA, _BETA))
            draws[rate] = rng.standard_gamma(alpha) / beta
        return draws


def _plan(reading: Reading) -> Plan:
    plan = loop_plan(marginalized(reading)[0], _NAME)
    return plan._replace(run=partial(run_tuned, reading, RatesChain, _NAME))


ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, handicap=3.0))
