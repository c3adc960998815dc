"""How latent Gaussian variables behind released counts are best written, as sentences."""

from __future__ import annotations

import numpy as np
from pymc.distributions.multivariate import ICARRV
from pymc.distributions.timeseries import RandomWalkRV
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.questions import known_shape, known_value, nearest_rvs
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import (
    Reading,
    as_published,
    parents,
    record_length,
    release_mechanism,
    release_statistic,
    releases_of,
)
from pymc_dp.reading.sums import is_rowwise
from pymc_dp.routes.coordinates import latents

# Counts that are this exact say enough of every rate: few spreads are below it.
_EXACT = 0.05


@once
def centred(reading: Reading) -> list[str]:
    """Say which latent Gaussian variables behind counts are centred that noise may call not to be.

    Their spread is free, and there is one entry to a count. Which form mixes depends on whether the
    count or the spread says more of an entry: docs/latent_gaussian.md has measurements.
    """
    found = []
    moved = {latent.rv for latent in latents(reading)}
    for counts in (rv for group in record_groups(reading) for rv in group.records):
        error = None if counts.dtype.startswith("float") else _standard_error(reading, counts)
        if error is None or error < _EXACT:
            continue
        for rv in parents(counts):
            walk = isinstance(rv.owner.op, RandomWalkRV)
            spread = _spread(reading, rv)
            if not spread or isinstance(rv.owner.op, ICARRV) or rv in moved:
                continue
            if known_shape(rv) != known_shape(counts):
                continue
            scale = spread[0] if len(spread) == 1 else "spread"
            instead = f"start + {scale} * pt.cumsum(raw)" if walk else f"mean + {scale} * raw"
            found.append(
                f"{rv.name!r} is centred: drawn around its free spread, of "
                f"{' and '.join(map(repr, spread))}. An entry of {counts.name!r} gives the log of "
                f"its rate with a standard error of about {error:.2g}; where the spread may be "
                f"less, {rv.name} = {instead} mixes better, with raw of pm.Normal('raw', 0, 1, "
                f"shape=...)."
            )
    return found


@once
def unnormalised(reading: Reading) -> list[str]:
    """Name the ICAR effects of a free sigma: PyMC's density leaves out what depends on it."""
    return [
        f"{rv.name!r}: the density of pm.ICAR lacks its factor sigma**-(n - 1), so that the "
        f"posterior of {' and '.join(map(repr, spread))} is wrong. Write "
        f"{rv.name} = sigma * pm.ICAR({rv.name + '_raw'!r}, W=W)."
        for rv in reading.model.free_RVs
        if isinstance(rv.owner.op, ICARRV) and (spread := _spread(reading, rv))
    ]


def _spread(reading: Reading, rv: TensorVariable) -> list[str | None]:
    """Return the names of the free variables that the spread of a Gaussian vector is made of."""
    if rv not in reading.model.free_RVs:
        return []
    if isinstance(rv.owner.op, RandomWalkRV):
        _, step, *_ = rv.owner.inputs
        [rv] = nearest_rvs([step])
    if not isinstance(rv.owner.op, NormalRV | ICARRV):
        return []
    sigma = rv.owner.op.dist_params(rv.owner)[1]
    made_of = nearest_rvs([sigma])
    return [v.name for v in reading.model.free_RVs if v in made_of]


def _standard_error(reading: Reading, counts: TensorVariable) -> float | None:
    """Return that of the log rate of a typical count that is released by itself; None of others."""
    found = releases_of(reading.model, [counts])
    if len(found) != 1 or counts.type.ndim == 0:
        return None
    [release] = found
    statistic = release_statistic(release)
    rates = release_mechanism(release).rates
    singly = known_shape(statistic) == known_shape(counts) and is_rowwise(
        statistic, counts, record_length(counts), counts.type.ndim
    )
    if not singly or rates is None or release not in reading.model.observed_RVs:
        return None
    numbers = as_published(reading.model.rvs_to_values[release]), *rates
    value, rate, precision = map(known_value, numbers)
    if value is None or rate is None or precision is None:
        return None
    noise = 1.0 / np.maximum(rate**2 / 2.0, precision)  # the variance
    count = np.maximum(value, 1.0)
    return float(np.median(np.sqrt(count + noise) / count))
