"""Checks of the arguments of `PrivateObservation`; their messages name the release."""

from __future__ import annotations

import logging

import numpy as np
import pymc as pm
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import depends_on, known_value, nearest_rvs
from pymc_dp.mechanisms.alignment import wrong_shape
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.release import record_bounds
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, release_statistic, releases
from pymc_dp.reading.normal_column import read_normal_column
from pymc_dp.reading.propriety import check_possible
from pymc_dp.reading.record_lengths import record_length

_log = logging.getLogger("pymc.dp")


def check_dims(name: str, rv, dims, coords, model: pm.Model) -> None:
    """Refuse dims that the model does not have, or that are longer or shorter than the release."""
    for dim, length in zip(dims or (), known_shape(rv), strict=False):
        if dim is None:
            continue
        if dim not in coords and dim not in model.dim_lengths:
            raise ValueError(
                f"{name!r}: the model has no dimension {dim!r}: add it with pm.Model(coords=...), "
                f"or leave dims= out, and that of an xarray with .to_numpy()"
            )
        known = known_value(model.dim_lengths[dim]) if dim not in coords else len(coords[dim])
        if length is not None and known is not None and known != length:
            raise ValueError(
                f"{name!r}: the dimension {dim!r} has {known} labels, and the released statistic "
                f"has {length} entries along it"
            )


def check_confidential(name: str, statistic: TensorVariable, model: pm.Model) -> None:
    """Refuse a statistic that does not depend on a free random variable of the model."""
    sources = nearest_rvs([statistic])
    unknown = [rv for rv in sources if rv not in model.named_vars.values()]
    if unknown:
        raise ValueError(
            f"{name!r}: the statistic uses the random variable {unknown[0]} that is not part of "
            f"the model. Give it a name (pm.Normal('records', ...)), or pass the .dist(...) itself "
            f"as the statistic"
        )
    if not any(rv in model.free_RVs for rv in sources):
        seen = [rv for rv in sources if rv in model.observed_RVs]
        if seen:
            raise ValueError(
                f"{name!r}: the statistic is computed from {seen[0].name!r}, which is observed: "
                f"confidential values have no observed=. Leave it out, and give {seen[0].name!r} "
                f"its shape="
            )
        raise ValueError(
            f"{name!r}: the statistic contains no confidential random variable of the model. Write "
            f"it as an expression of unobserved variables, such as records.mean() with "
            f"records = pm.Normal('records', mu, sigma, shape=n). A comparison with == is Python's "
            f"own: write pytensor.tensor.eq(records, 0)"
        )


def warn_of_one_value(name: str, statistic: TensorVariable) -> None:
    """Warn of a sum or mean of a single value, which probably was meant to be a vector."""
    for variable in ancestors([statistic], blockers=nearest_rvs([statistic])):
        node = variable.owner
        if node is None or not isinstance(node.op, Sum) or node.inputs[0].type.ndim:
            continue
        for rv in nearest_rvs([node.inputs[0]])[:1]:
            _log.warning(
                "%r: the statistic takes a sum or a mean of %r, which is a single value: if it "
                "stands for n records, write shape=n for %r", name, rv.name, rv.name,
            )  # fmt: skip
            return


def check_noise_shape(name: str, statistic: TensorVariable, mechanism: Mechanism) -> None:
    """Refuse noise parameters that do not broadcast against the statistic."""
    shape, axes = known_shape(statistic), mechanism.statistic_ndim
    if axes > len(shape):
        raise ValueError(
            f"{name!r}: {type(mechanism).__name__} makes one release of several entries of its "
            f"statistic, which is a single number: write a list, or a vector"
        )
    wrong = wrong_shape(mechanism, shape, axes)
    if wrong is not None:
        raise ValueError(
            f"{name!r}: a noise parameter of shape {wrong} does not broadcast against the "
            f"statistic of shape {shape}: write one scale for all, or one per entry (of "
            f"where=, one truth value per entry)"
        )


def check_records(name: str, model: pm.Model, rv: TensorVariable) -> None:
    """Check a release against its records, and against their other releases."""
    for records in nearest_rvs([release_statistic(rv)]):
        if records not in model.free_RVs or records.type.ndim == 0 or known_shape(records)[0] == 0:
            continue
        _check_bounds_agree(name, model, rv, records)
        try:
            reading = Reading(model)
            group = Records((records,), record_length(records), ())
            read = read_normal_column(reading, group, (rv,))
            entries = read.components
        except (Declined, ValueError):
            continue  # another kind of statistic or record
        if read.n == 1 and any(
            np.isnan(e.constant) or not (e.mean or e.variance or e.constant) for e in entries
        ):
            raise ValueError(
                f"{name!r}: a variance needs n >= 2 records; {records.name!r} has 1. Release the "
                f"mean only"
            )
        check_possible(reading, read)


def _check_bounds_agree(name, model, rv, records) -> None:
    """Refuse releases of the same records that state different bounds."""
    stated = [
        record_bounds(r, model.free_RVs).get(records)
        for r in [*releases(model), rv]
        if depends_on(release_statistic(r), records)
    ]
    if len(set(stated)) > 1:
        raise ValueError(
            f"{name!r}: the releases of {records.name!r} state different bounds "
            f"{', '.join(map(str, stated))}: they are a property of the records, so give every "
            f"release of them the same bounds="
        )
