"""Checks of a model: published values, whole-number noise, transforms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
from pymc.distributions.transforms import _default_transform
from pytensor.graph.basic import equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import is_whole, known_value
from pymc_dp.mechanisms.checks import check_attainable, is_published
from pymc_dp.mechanisms.postprocessed import layers
from pymc_dp.reading.model import as_published, mechanism_of, release_statistic, releases


def check_values(model: pm.Model) -> None:
    """Check published values and noise again: `pm.set_data` may have changed them."""
    for release in releases(model):
        if release not in model.observed_RVs:
            continue
        published = as_published(model.rvs_to_values[release])
        value = known_value(published)
        shape = release.type.shape
        if value is not None and (
            value.ndim != len(shape)
            or any(e not in (None, s) for e, s in zip(shape, value.shape, strict=False))
            or not np.all(is_published(mechanism_of(release), value))
        ):
            raise ValueError(
                f"{release.name!r}: the observed value {value} is not a finite array of shape "
                f"{shape}; was it changed by pm.set_data?"
            )
        wrong = mechanism_of(release).wrong_parameter()
        if wrong is not None:
            raise ValueError(
                f"{release.name!r}: the noise parameter {wrong}; was it changed by pm.set_data?"
            )
        check_attainable(release.name, mechanism_of(release), published, release_statistic(release))


def takes_whole(release: TensorVariable) -> bool:
    """Whether a release adds whole-number noise, before any rounding or clipping."""
    return layers(release.owner.op.mechanism)[-1].takes_whole


def leaves_gaps(release: TensorVariable) -> bool:
    """Whether whole-number noise rules out records for which the statistic is not whole.

    Moves by one record, or by one count, then cannot pass between the records that are possible.
    """
    return takes_whole(release) and not is_whole(release_statistic(release))


def require_possible(declared: Sequence[TensorVariable]) -> None:
    """Decline whole-number noise on a statistic that is not known to be a whole number."""
    for release in declared:
        if leaves_gaps(release):
            raise Declined(
                f"{release.name!r} adds whole-number noise to a statistic that is not known to be "
                f"whole, and impossible where it is not. Release a sum of whole numbers; or, if it "
                f"always is whole, write pt.round(...)",
                near=1,
            )


def check_transform(model: pm.Model, rv: TensorVariable) -> None:
    """Refuse a transform that the user put on a variable: it may cut the variable's support."""
    actual = model.rvs_to_transforms.get(rv)
    default = _default_transform(rv.owner.op, rv)
    if actual is not None and not _same_transform(actual, default, rv):
        raise Declined(
            f"{rv.name!r} has the transform {type(actual).__name__}, which is not its default one "
            f"and may cut its support: leave transform= out, and state the support by the "
            f"distribution (pm.Uniform, pm.Truncated)",
            near=2,
        )


def _same_transform(actual, default, rv: TensorVariable) -> bool:
    """Whether two transforms are the same function."""
    if type(actual) is not type(default):
        return False
    value = rv.type("value")
    forward = [[t.forward(value, *rv.owner.inputs)] for t in (actual, default)]
    return equal_computations(*forward)
