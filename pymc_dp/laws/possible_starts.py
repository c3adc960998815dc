"""Starting values of records that are possible given a release of each, as of bounded noise."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws.of_function import OfFunction, read_function
from pymc_dp.mechanisms.release import apart
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.model import mechanism_of, release_statistic

_STEPS = 17  # on the way from PyMC's start to a value that leads to the release


def start_where_possible(model: pm.Model, release: TensorVariable) -> None:
    """Start records at values that can lead to a release of each, where PyMC's start cannot.

    A start that the user gave stays. Where no possible one is found nothing changes.
    """
    mechanism, value = mechanism_of(release), known_value(model.rvs_to_values[release])
    if mechanism.rates is not None or mechanism.statistic_ndim or value is None:
        return
    [rv, *more] = nearest_rvs([release_statistic(release)])
    if more or rv not in model.free_RVs or rv.owner.op.ndim_supp:
        return
    if model.rvs_to_initial_values.get(rv) is not None:
        return
    published = pt.constant(value)
    try:
        function, further = read_function(apart(release_statistic(release)), rv)

        def is_possible(x: np.ndarray) -> np.ndarray:
            noise = mechanism.logp(published, function.at(pt.constant(x), further))
            law = pm.logp(rv, pt.constant(x), warn_rvs=False)
            [density] = starting_values([law + noise])
            return np.isfinite(density)

        [own] = starting_values([rv])
        if is_possible(own).all():
            return
        of_value = OfFunction(mechanism, function, tuple(further))
        [there] = starting_values([of_value.typical_statistic(published)])
        share = np.linspace(0.0, 1.0, _STEPS).reshape(-1, *[1] * np.ndim(own))
        ways = own + share * (np.where(np.isfinite(there), there, own) - own)
        ways = np.rint(ways).astype(rv.dtype) if rv.dtype.startswith("int") else ways
        possible = is_possible(ways)
    except (Declined, NotImplementedError):  # PyMC has no starting value for a part of the law
        return
    if possible.any(axis=0).all():
        first = np.argmax(possible, axis=0)
        start = np.take_along_axis(ways, first[None], axis=0)[0]
        model.rvs_to_initial_values[rv] = start
        rv.tag.dp_started = True  # not by the user
