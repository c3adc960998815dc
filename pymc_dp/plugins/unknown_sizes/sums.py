"""The law of a sum over records, for each number of records that is possible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.laws import find_pair
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.mean_variance import mean_variance
from pymc_dp.plugins.inversion.density import log_densities
from pymc_dp.plugins.inversion.lattice import excess
from pymc_dp.plugins.inversion.summand import Summand


@dataclass(frozen=True, eq=False)
class SumsOfRecords:
    """The law of a record, and the sum over records that is released.

    Without a `summand` the records themselves are summed, and their sum has a known law.
    """

    law: RandomVariable
    count: int  # of its parameters
    summand: Summand | None

    @cached_property
    def multiple(self) -> tuple[float, float] | None:
        """The numbers a and b of a summand a x + b of a record x; None of other functions."""
        return (1.0, 0.0) if self.summand is None else self.summand.multiple

    def draw(self, rng, n, parameters):
        """Draw the sum of n records of each group."""
        if self.summand is None:
            law, law_parameters = sum_of(self.law, pt.maximum(n, 1), *parameters)
            rng, total = law(*law_parameters, rng=rng, return_next_rng=True)
            return rng, pt.switch(n > 0, total, 0)
        return self.summand.draw(rng, self.law, parameters, n)

    def mean_variance(self, parameters):
        """Return the mean and the variance of the summand of a record; may be declined."""
        if self.summand is None:
            law, law_parameters = sum_of(self.law, 1, *parameters)
            return mean_variance(law, *law_parameters)
        return self.summand.mean_variance(self.law, parameters)

    def log_sum(self, weights, sizes, z, mechanism, constant, slope, parameters):
        """Log of the sum over sizes of weight times density of a noisy sum, for each group.

        A group has a row of sizes, and the weight, constant and slope of each size.
        """
        usable = np.isfinite(slope) & (slope != 0) & (sizes > 0)
        # Without records, or where the slope is 0, the release is noise around the constant.
        alone = np.isfinite(constant) & ((sizes == 0) | (slope == 0))
        noise = mechanism.with_parameters(*(p[:, None] for p in mechanism.parameters))
        z = z.astype("float64")[:, None]
        alike = _generating(sizes, constant, slope) if (usable | (sizes == 0)).all() else None
        if self.summand is not None and alike is not None:
            return self._inverted(weights, sizes, z, noise, *alike, parameters)
        times, offset = np.where(usable, slope, 1.0), np.where(usable, constant, 0.0)
        none = noise.logp(z, pt.constant(np.where(alone, constant, 0.0)))
        none = weights + pt.switch(alone, none, -np.inf)
        if self.summand is not None:
            among = pt.switch(usable, weights - np.log(abs(times)), -np.inf)
            added = np.zeros(len(sizes))
            density = self._inverted(among, sizes, z, noise, offset, added, times, parameters)
            return pt.logaddexp(density, pt.logsumexp(none, axis=-1)) if alone.any() else density
        scaled = noise.with_parameters(*(p / abs(times) for p in noise.parameters))
        each = [p[:, None] for p in parameters]
        law, law_parameters = sum_of(self.law, pt.constant(np.maximum(sizes, 1)), *each)
        density = find_pair(law, scaled).log_marginal(scaled, (z - offset) / times, *law_parameters)
        density = weights + density - np.log(abs(times))
        return pt.logsumexp(pt.switch(usable, density, none), axis=-1)

    def _inverted(self, weights, sizes, z, noise, offset, added, times, parameters):
        """`log_sum` of ``offset + times * sum`` by inversion, a number `added` to each summand."""
        summand = self.summand
        assert summand is not None
        parts = (part / abs(times) for part in summand.noise_parts(noise))
        doubles = [p.astype("float64") for p in parameters]
        density = log_densities(
            self.law, doubles, sizes[:, 0], summand, (z - offset) / times, *parts,
            log_number=weights, added=added,
        )  # fmt: skip
        density = density + pt.broadcast_to(excess(noise, z), z.shape)[:, 0]
        return density - np.log(abs(times[:, 0])) if times.shape[1] == 1 else density


def _generating(sizes, constant, slope):
    """Return what is added once, what is added for each record, and the factor.

    None where the factor varies with the number of records, or constants are not linear in it.
    """
    factor = slope[:, -1:]
    first, last = constant[:, :1], constant[:, -1:]
    each = (last - first) / max(sizes.shape[1] - 1, 1)
    straight = first + each * np.arange(sizes.shape[1])
    near = 1e-12 * (1.0 + abs(constant))
    varies = (slope != factor) & (sizes > 0)
    if varies.any() or not (abs(constant - straight) <= near).all():
        return None
    return first - each * sizes[:, :1], (each / factor)[:, 0], factor
