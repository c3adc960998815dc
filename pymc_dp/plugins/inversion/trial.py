"""Whether quadrature finds the density of noisy sums in their bulk: tried before sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
import scipy
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import noticed_function
from pymc_dp.laws.parts import Part
from pymc_dp.laws.real_line import backward
from pymc_dp.plugins.inversion.kernels.numbers import FEW, sparing_line, tiers
from pymc_dp.plugins.inversion.quadrature import law_of_sum, node_count, panel_counts
from pymc_dp.plugins.inversion.summand import Summand

_FAR = np.array([-1e100, 1e100])  # on the real line, to which supports are mapped
_FEW_RECORDS = 12
_BEYOND = 1.5  # times the values where a model starts
_BULK = 0.8  # of the mass, in which a density is to be found
# Levels of the sum and of its noise, on a lattice: the same models are declined every time.
_LEVELS = 16


def trial_of(found_at: Callable[..., None]) -> Callable[[], None]:
    """Return a function that declines a density that is not found, see `require_found`.

    It has to be found at the starting values of the model or at 1.5 times these: a start may be
    odd. Models that can be declined without compiling are declined at once.
    """
    found_at(1.0, compiled=False)

    def trial() -> None:
        try:
            found_at(1.0)
        except Declined as reason:
            try:
                found_at(_BEYOND)
            except Declined:
                raise reason from None

    return trial


def require_found(
    name: str,
    parts: list[Part],
    n: int,
    summand: Summand,
    laplace: TensorVariable,
    gaussian: TensorVariable,
    fewest: int = FEW,
    compiled: bool = True,
) -> None:
    """Decline a sum of n records whose noisy density is not found in its bulk.

    Parameters
    ----------
    name : of the records.
    parts, summand : the law and the contribution of a record, at the start of the model.
    laplace, gaussian : see `quadrature.noise_parts`.
    fewest : with fewer records, the density under Laplace noise takes too long.
    compiled : whether the density is computed; if not, only sums of few records under Laplace
        noise are declined, unless they are counts.
    """
    with np.errstate(all="ignore"):
        noise_scales = [float(part) for part in noticed_function([], [laplace, gaussian])()]
    takes_long = bool(noise_scales[0]) and n < fewest
    if not (compiled or takes_long):
        return
    noisy = [pt.dscalar() for _ in range(3)]
    counts = panel_counts(n)
    sets = law_of_sum(parts, float(n), counts, summand, *noisy)
    nodes = [pt.concatenate(node_arrays) for node_arrays in zip(*sets, strict=True)]
    few = node_count(parts, counts[0], summand)
    far = [p.clipped(backward(p.law, pt.constant(_FAR))) for p in parts if not p.is_atom]
    ends = summand.at(pt.concatenate(far))
    with np.errstate(all="ignore"):
        find = noticed_function(noisy, [*nodes, ends])
        line = sparing_line if noise_scales[0] and n < FEW else tiers  # compiles sooner

        def density(z) -> float:
            *node_arrays, _ = find(z, *noise_scales)
            return line(*node_arrays, few, float(n), np.zeros(1), z, *noise_scales, False)[0]

        log_mass, values, _, far = find(0.0, *noise_scales)
        log_mass, values = log_mass[few:], values[few:]
        mass = np.exp(log_mass - log_mass.max())
        mass, values = mass[mass > 0] / mass.sum(), values[mass > 0]
        if len(np.unique(values)) <= 2:
            return  # a count: the sum over it is written out
        unbounded = not np.abs(far).max() <= 2.0 * np.abs(values).max()

        def declined() -> Declined:
            return Declined(
                f"the sum over a group of {n} records {name!r} under noise of scale "
                f"{max(noise_scales):.3g}: quadrature does not find the density of "
                f"{_why(n, unbounded)}",
                instead="Sample with rung='records'",
                near=1,
            )

        if takes_long:
            raise declined()
        level = (np.outer(np.arange(_LEVELS), (1, 7)) % _LEVELS + 0.5) / _LEVELS
        level = 0.5 + _BULK * (level - 0.5)  # the tails of skewed sums are elsewhere
        # Quantiles of a Normal with the moments of the sum, clipped to the range of the sum.
        mean = mass @ values
        spread = np.sqrt(n * mass @ (values - mean) ** 2)
        sums = n * mean + scipy.stats.norm.ppf(level[:, 0]) * spread
        sums = np.clip(sums, n * values.min(), n * values.max())
        noise = [kind.ppf(level[:, 1]) for kind in (scipy.stats.laplace, scipy.stats.norm)]
        for z in sums + noise_scales[0] * noise[0] + noise_scales[1] * noise[1]:
            if not np.isfinite(density(z)):
                raise declined()


def _why(n: int, unbounded: bool) -> str:
    """Say for which sums a density is hard to find."""
    if unbounded:
        return f"{'few records' if n < _FEW_RECORDS else 'heavy tails'} without bounds"
    return "few records under narrow noise"
