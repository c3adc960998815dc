"""Whether the density of noisy sums is found where they lie: tried before it is called open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import PLAIN_MODE
from pymc_dp.laws.inversion.breakpoints import Summand
from pymc_dp.laws.inversion.quadrature import (
    FEWEST,
    backward,
    law_of_sums,
    log_density_of_sums,
    panel_counts,
    statistics,
)

# Sums without bounds have any scale where parameters move: noise of this share of theirs, where the
# model starts, has to be met, too.
_OF_SUMS = 0.3
_MISSED = 0.05  # share of the releases that may be NaN: at corners, where all records are clipped
_DRAWS = {1: 40, 2: 12}
_FAR = np.array([-1e100, 1e100])  # on the real line, to which supports are mapped
_FEW, _SAME = 12, 1e9


def require_found(
    name: str,
    law: TensorVariable,
    n: int,
    summands: Sequence[Summand],
    record: TensorVariable,
    laplace: TensorVariable,
    gaussian: TensorVariable,
) -> None:
    """Decline sums of n records whose noisy density is not found in its bulk.

    Parameters
    ----------
    name : of the records.
    law, summands : of one record, and what it contributes; where the model starts.
    record : the record that stands in the summands.
    laplace, gaussian : vectors, see `inversion.release.noise_parts`.
    """
    dim = len(summands)
    noisy = [pt.tensor(shape=(dim,), dtype="float64") for _ in range(3)]
    at = summands, record, *noisy
    log_weight, h, _ = law_of_sums(law, float(n), panel_counts(dim, n)[-1:], *at)
    ends = statistics(summands, record, backward(law, pt.constant(_FAR)))
    density = log_density_of_sums(law, float(n), n, *at)
    options = {"mode": PLAIN_MODE, "on_unused_input": "ignore"}
    with np.errstate(all="ignore"):
        own = pytensor.function([], [laplace, gaussian], mode=PLAIN_MODE)()
        log_mass, values, far = pytensor.function(noisy, [log_weight, h, ends], **options)(
            np.zeros(dim), *own
        )
        mass = np.exp(log_mass - log_mass.max())
        mass, values = mass[mass > 0] / mass.sum(), values[mass > 0]
        if len(np.unique(values, axis=0)) <= 2:
            return  # a count: the sum over it is written out
        unbounded = ~(np.abs(far).max(axis=0) <= 2.0 * np.abs(values).max(axis=0))
        centred = values - mass @ values
        deviation = np.sqrt(n * mass @ centred**2)

        def declined(scales) -> Declined:
            same = dim == 2 and np.linalg.cond(centred / deviation) > _SAME
            why = _why(n, dim, bool(unbounded.any()), same)
            which = "the sum" if dim == 1 else "the two sums"
            return Declined(
                f"{which} over a group of {n} records {name!r} under noise of scale "
                f"{np.hypot(*scales).max():.3g}: quadrature does not find the density of {why}",
                instead="Sample with rung='records'",
                near=1,
            )

        if n < FEWEST and own[0].any():
            raise declined(own)
        rng, found = np.random.default_rng(0), pytensor.function(noisy, density, **options)
        drawn = rng.multinomial(n, mass, size=_DRAWS[dim]) @ values
        noise = rng.laplace(size=drawn.shape), rng.normal(size=drawn.shape)
        share = np.minimum(1.0, _OF_SUMS * deviation / np.hypot(*own))
        for part in (1.0, np.where(unbounded, share, 1.0)):
            scales = [part * scale for scale in own]
            noisy_sums = drawn + scales[0] * noise[0] + scales[1] * noise[1]
            missed = sum(not np.isfinite(found(s, *scales)) for s in noisy_sums)
            if missed > _MISSED * len(drawn):
                raise declined(scales)


def _why(n: int, dim: int, unbounded: bool, same: bool) -> str:
    """Say of what a density is hard to find."""
    if same:
        return "two entries that tell the same sum"
    if dim == 2:
        return "few records, heavy tails or narrow noise"
    if unbounded:
        return f"{'few records' if n < _FEW else 'heavy tails'} without bounds"
    return "few records under narrow noise"
