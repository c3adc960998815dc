"""Starting values of records that are possible given a release of each, as of bounded noise."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE, known_value, nearest_rvs
from pymc_dp.laws.of_function import read_function
from pymc_dp.mechanisms.release import apart
from pymc_dp.reading.bounds import at_start, starting_values
from pymc_dp.reading.model import mechanism_of, release_statistic

_STEPS = 17  # on the way from PyMC's start to a value that leads to the release


def start_where_possible(model: pm.Model, release: TensorVariable) -> None:
    """Start records at values that can lead to a release of each, where PyMC's start cannot.

    A start that the user gave stays. Where no possible one is found nothing changes.
    """
    mechanism, records = mechanism_of(release), nearest_rvs([release_statistic(release)])
    value = known_value(model.rvs_to_values[release])
    if mechanism.rates is not None or mechanism.statistic_ndim or value is None:
        return
    if len(records) != 1 or model.rvs_to_initial_values.get(records[0]) is not None:
        return
    [rv] = records
    if rv not in model.free_RVs or rv.owner.op.ndim_supp:
        return
    try:
        function, further = read_function(apart(release_statistic(release)), rv)
        [own] = starting_values([rv])
    except Declined:
        return
    typical = mechanism.typical_statistic(pt.constant(value))
    [there] = starting_values([function.roots(typical, further)[0]])
    share = np.linspace(0.0, 1.0, _STEPS).reshape(-1, *[1] * np.ndim(own))
    ways = own + share * (np.where(np.isfinite(there), there, own) - own)
    ways = np.rint(ways).astype(rv.dtype) if rv.dtype.startswith("int") else ways
    x = pt.constant(ways)
    [law] = at_start([pm.logp(rv, x)])
    noise = mechanism.logp(pt.constant(value), function.at(x, further))
    possible = np.isfinite((law + noise).eval(mode=PLAIN_MODE))
    if possible[0].all() or not possible.any(axis=0).all():
        return
    first = np.argmax(possible, axis=0)
    start = np.take_along_axis(ways, first[None], axis=0)[0]
    model.rvs_to_initial_values[rv] = start
    rv.tag.dp_started = True  # not by the user
