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

import pymc as pm
import pytensor.tensor as pt
from pymc.util import get_random_generator
from pytensor.tensor.random.basic import GammaRV, PoissonRV
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, about, once
from pymc_dp.graphs.draws import with_deterministics
from pymc_dp.graphs.powers import power
from pymc_dp.graphs.shapes import known_shape, require_entry_each
from pymc_dp.graphs.substitution import substitute
from pymc_dp.ladder.collapse import dropped_deterministics, rebuilt
from pymc_dp.laws.sum_law import Change
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, children, privatized
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, CHAINS
from pymc_dp.routes.steps_chain import loop_plan

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
    if not known_shape(counts) == known_shape(mean) == known_shape(rate) or None in known_shape(
        rate
    ):
        raise Declined(f"the counts {counts.name!r} have no rate each in {rate.name!r}")
    if power(mean, rate, positive=True) != 1:
        raise Declined(f"the mean of {counts.name!r} is not proportional to {rate.name!r}")
    check_transform(reading.model, rate)
    return counts, substitute(mean, {rate: pt.ones(known_shape(rate), rate.dtype)})


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


def _plan(reading: Reading) -> Plan:
    sampled, rates = marginalized(reading)
    plan = loop_plan(sampled, _NAME)
    return plan._replace(run=partial(_sample, reading, rates, plan.run))


def _sample(reading: Reading, rates: list[TensorVariable], run, **kwargs) -> DataTree:
    """Sample the model without the rates, and draw these."""
    tree, model = run(**kwargs), reading.model
    posterior = tree["posterior"].to_dataset()
    # Not the generator of a chain.
    chains = kwargs.get("chains") or CHAINS
    rng = get_random_generator(kwargs.get("random_seed")).spawn(chains + 2)[-1]
    for rate in rates:
        alpha, beta = (posterior[form.format(rate.name)] for form in (_ALPHA, _BETA))
        drawn = rng.standard_gamma(alpha.to_numpy()) / beta.to_numpy()
        unnamed = {d: str(d).replace(str(alpha.name), str(rate.name), 1) for d in alpha.dims}
        posterior[rate.name] = alpha.copy(data=drawn).rename(unnamed)
    dropped = dropped_deterministics(reading)
    own = [d for d in model.deterministics if d.name not in posterior and d not in dropped]
    posterior = with_deterministics(posterior, model, own)
    shown = [rv.name for rv in model.unobserved_RVs if rv.name in posterior]
    tree["posterior"] = DataTree(posterior[shown])
    return tree


ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, handicap=3.0))
