"""`check`: densities with integrated records, beside Monte Carlo over the model as it is written.

Nothing of the laws is used for the second: records are drawn by PyMC, statistics are evaluated as
they are written, and the density of the noise is averaged over them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pymc as pm
from pymc.util import get_random_generator

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import needed_draws
from pymc_dp.graphs.stages import Stages, stage
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.ladder.check.releases import Releases
from pymc_dp.ladder.check.words import Check, in_words
from pymc_dp.ladder.collapse import collapsed, left_out, try_densities
from pymc_dp.laws.integrated import all_releases
from pymc_dp.reading.frozen import read
from pymc_dp.reading.model import Reading, privatized

_TRIED, _LOOK = 400, 3.0  # draws of the prior, of which points are taken by density; seconds
_FAR = 10.0  # below the largest log density: a point that tells little


def check(
    model: pm.Model | None = None,
    idata: Any = None,
    *,
    points: int = 4,
    seconds: float = 20.0,
    random_seed: Any = None,
    progressbar: bool = True,
) -> Check:
    r"""Compare the density that is sampled with brute force on the model as it is written.

    The log density of all releases given the parameters, in which `collapse` has integrated the
    records out, is compared at some points with

    .. math:: \log \frac{1}{S} \sum_{s=1}^S \eta(z \mid T(x_s)), \quad x_s \sim p(x \mid \theta),

    for records drawn by PyMC. Parts of the releases that use no record in common are averaged by
    themselves. Where the noise is so narrow beside the spread of the statistic that few of the
    draws count, the mean of the density over 24 releases that are simulated at the points is
    compared in place of that of the published one.

    Parameters
    ----------
    model : pm.Model, optional
        A model with `PrivateObservation` releases; the one of the context if None.
    idata : DataTree, optional
        Draws of the posterior, of which points are taken at equal distances. Without them points
        are drawn from the prior with the density as weights.
    points : int
        Number of points; fewer where few draws of the prior fit what was released.
    seconds : float
        Time for the draws of the records.
    random_seed : int or Generator, optional
    progressbar : bool
        Whether a line shows what is done.

    Returns
    -------
    Check
        Printed it says "agrees within .02", "differs by 1.3 (error .1) at ..." or "cannot tell".

    Raises
    ------
    ValueError, NotImplementedError
        There is no release with a value, or more than 10 million records; a prior has no draws, and
        no `idata` is given. Records cannot be integrated out: `sample` then moves them as they are
        written, and there is nothing to compare.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> dp.check(model, random_seed=1)  # doctest: +SKIP
    agrees within 0.012: ...
    """
    reading = read(model, "dp.check(model)")
    if points < 1:
        raise ValueError(f"points={points}: write a number of at least one")
    declared = all_releases(reading.model)
    if not declared:
        raise ValueError("there is no release: declare one with dp.PrivateObservation")
    if free := [rv.name for rv in declared if rv in reading.model.free_RVs]:
        raise ValueError(f"{free[0]!r} has no value: write observed=... where it is declared")
    with Stages(progressbar=progressbar, quiet=not progressbar):
        stage("Integrating out")
        ours = _integrated(reading)
        names = [rv.name for rv in ours.free_RVs if rv.name in reading.model.named_vars]
        rng = get_random_generator(random_seed)
        density = Releases(ours, names, written=False)
        written = Releases(reading.model, names, written=True)
        # Some laws have several releases together: others than the published ones are not made.
        apart = [rv.name for rv in density.rvs] == [rv.name for rv in written.rvs]
        stage("Looking for points")
        variables = [reading.model[name] for name in names]
        if idata is None:
            at = _of_prior(variables, density, points, rng)
        else:
            at = _of_posterior(variables, idata, points)
        for compared in ("published", "simulated"):
            is_published = compared == "published"
            values = [written.observed()] if is_published else written.simulated(at, rng)
            own_values = [density.observed()] if is_published else values
            rows = []
            for i, point in enumerate(at):
                stage(f"Drawing records at point {i + 1} of {len(at)}, {compared} releases")
                limit = seconds / 2 / len(at)
                own, own_error = density.log_density(point, own_values, rng, limit)
                truth, error = written.log_density(point, values, rng, limit, own)
                rows.append((own, truth, own - truth, np.hypot(error, own_error)))
            found = in_words(reading.model, names, at, rows, compared)
            if found.agrees is not None or left_out(ours) or not apart:
                break
    return found


def _integrated(reading: Reading) -> pm.Model:
    """Return the model whose density is sampled: of parameters alone, or of few statistics."""
    observed = reading.model.observed_RVs
    if not privatized(reading) and any(hasattr(rv.tag, "dp_written") for rv in observed):
        return reading.model
    refusals: list[Exception] = []
    for rung in ("marginal", "statistics"):
        try:
            rung_reading = collapsed(reading, rung)
            try_densities(rung_reading)
            return rung_reading.model
        except (NotImplementedError, ValueError) as why:
            refusals.append(why)
    raise Declined(
        f"there is no density to compare, dp.sample moves what is confidential as the model is "
        f"written: {refusals[0]}"
    ) from None


def _of_posterior(variables, idata, count: int) -> list[list[np.ndarray]]:
    """Return draws of the posterior at equal distances."""
    has_draws = "posterior" in getattr(idata, "children", idata)
    posterior: Any = idata["posterior"] if has_draws else {}
    if lacks := [rv.name for rv in variables if rv.name not in posterior]:
        raise ValueError(f"idata has no draws of {lacks[0]!r} in a group 'posterior'")
    values = needed_draws(posterior, variables)
    places = np.linspace(0, posterior.sizes["chain"] * posterior.sizes["draw"] - 1, count)
    return [[values[v][i] for v in variables] for i in np.unique(places.astype(int))]


def _of_prior(variables, density: Releases, count: int, rng) -> list[list[np.ndarray]]:
    """Return draws of the prior, taken with the density of what was published as weights."""
    try:
        drawn = pm.draw(variables, _TRIED, random_seed=rng, mode=PLAIN_MODE)
    except NotImplementedError as why:
        raise ValueError(
            f"{why}: points have to come from the posterior. Write dp.check(model, idata)"
        ) from None
    tried = [[v[i] for v in drawn] for i in range(_TRIED)]
    began, found, observed = time.perf_counter(), [], density.observed()
    for point in tried:
        found.append(density.log_density(point, [observed], rng, 0.0)[0])
        if time.perf_counter() - began > _LOOK and len(found) >= count:
            break
    logs, top = np.array(found), np.nanmax([-np.inf, *found])
    # The largest sums with Gumbel numbers are draws without replacement.
    order = np.argsort(-(logs + rng.gumbel(size=logs.size))).tolist()
    lost = [i for i in order if np.isnan(logs[i])][:1]  # there is no density
    near = [i for i in order if logs[i] > top - _FAR]
    distinct = {tuple(x.tobytes() for x in tried[i]): tried[i] for i in lost + (near or order)}
    return list(distinct.values())[:count]
