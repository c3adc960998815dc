r"""The loop of steps with the rates of counts integrated out, entry by entry.

Where :math:`x_i \sim \mathrm{Poisson}(c_i \lambda_i)` and
:math:`\lambda_i \sim \mathrm{Gamma}(a_i, b_i)` feeds nothing else,

.. math::

    x_i \sim \mathrm{NegativeBinomial}\Bigl(a_i, \frac{b_i}{b_i + c_i}\Bigr), \qquad
    \lambda_i \mid x_i \sim \mathrm{Gamma}(a_i + x_i, b_i + c_i).

The first law is sampled: a and b mix faster without the rates. These are then drawn from the
second.
"""

from __future__ import annotations

from functools import partial

import pymc as pm
import pytensor.tensor as pt
from pymc.util import get_random_generator
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import GammaRV, PoissonRV
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.powers import power
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import depends_on, nearest_rvs
from pymc_dp.ladder.collapse import rebuilt
from pymc_dp.laws.sum_law import Change
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, children, privatized
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.steps_chain import loop_plan

_NAME = "steps in one loop, rates integrated out"
_FIRST, _SECOND = "{}__shape", "{}__rate"  # variables that only the sampled model has


def _factor(reading: Reading, rate: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return the counts of a rate, and c; decline what is not of this form."""
    model, offspring = reading.model, children(reading, rate)
    if len(offspring) != 1 or not isinstance(getattr(offspring[0].owner, "op", None), PoissonRV):
        raise Declined(f"{rate.name!r} does not feed Poisson counts and nothing else")
    [counts] = offspring
    if counts not in privatized(reading):
        raise Declined(f"the counts {counts.name!r} are not released")
    [mean] = counts.owner.op.dist_params(counts.owner)
    between = [v for v in ancestors([mean], blockers=[rate]) if depends_on(v, rate)]
    by_entry = all(v is rate or isinstance(v.owner.op, Elemwise) for v in between)
    shapes = {known_shape(v) for v in (counts, *between)}
    if not by_entry or shapes != {known_shape(rate)} or None in known_shape(rate):
        raise Declined(f"the counts {counts.name!r} have no rate each in {rate.name!r}")
    if power(mean, rate, positive=True) != 1:
        raise Declined(f"the mean of {counts.name!r} is not proportional to {rate.name!r}")
    check_transform(model, rate)
    if used := [d.name for d in model.deterministics if rate in nearest_rvs([d])]:
        raise Declined(f"{used[0]!r} is computed from {rate.name!r}")
    return counts, substitute(mean, {rate: pt.ones(known_shape(rate), rate.dtype)})


@once
def mixed(reading: Reading) -> tuple[Reading, list[str]]:
    """Return the reading of the model without the rates, and their names."""
    change, rates, reasons = Change(), [], ["it is for Gamma rates of released counts"]
    for rate in reading.model.free_RVs:
        if not isinstance(rate.owner.op, GammaRV) or rate.type.ndim == 0:
            continue
        try:
            counts, c = _factor(reading, rate)
        except Declined as why:
            reasons.append(str(why))
            continue
        a, scale = rate.owner.op.dist_params(rate.owner)
        first, second = a + counts, 1.0 / scale + c
        shape = known_shape(rate)
        law = pm.NegativeBinomial.dist(n=a, p=1.0 / (1.0 + scale * c), shape=shape)
        change.transforms[counts.name] = (law, None)
        for name, graph in ((_FIRST, first), (_SECOND, second)):
            change.deterministics[name.format(rate.name)] = pt.broadcast_to(graph, shape)
            change.entries_of[name.format(rate.name)] = rate
        rates.append(rate)
    if not rates:
        raise Declined(reasons[-1])
    return Reading(rebuilt(reading, rates, change), reading), [str(rv.name) for rv in rates]


def _plan(reading: Reading) -> Plan:
    without, rates = mixed(reading)
    plan = loop_plan(without, _NAME)
    names = [rv.name for rv in reading.model.unobserved_RVs]
    return plan._replace(run=partial(_sample, plan.run, rates, names))


def _sample(run, rates: list[str], names: list[str], **kwargs) -> DataTree:
    """Sample the model without the rates, and draw these."""
    tree = run(**kwargs)
    posterior = tree["posterior"].to_dataset()
    # Not the generator of a chain.
    rng = get_random_generator(kwargs.get("random_seed")).spawn((kwargs.get("chains") or 4) + 2)[-1]
    for name in rates:
        first, second = (posterior[form.format(name)] for form in (_FIRST, _SECOND))
        drawn = rng.standard_gamma(first.to_numpy()) / second.to_numpy()
        unnamed = {d: str(d).replace(str(first.name), name, 1) for d in first.dims}
        posterior[name] = first.copy(data=drawn).rename(unnamed)
    shown = [name for name in names if name in posterior]
    tree["posterior"] = DataTree(posterior[shown])
    return tree


ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, handicap=3.0))
