"""Draw confidential statistics and new records for a result that was sampled without them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.util import get_random_generator
from pytensor.tensor.random.basic import NormalRV
from xarray import DataTree

from pymc_dp.graphs.compiled import said_when_compiling
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import as_row, per_draw
from pymc_dp.graphs.interrupts import interruptible
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.stages import Stages
from pymc_dp.ladder.collapse import integrable
from pymc_dp.ladder.predict import NEW_ROWS, draw_normal, predict_rows
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.laws.moments.one_column import OneColumn
from pymc_dp.laws.sum_law import change, is_rows, law_of, run_trials
from pymc_dp.reading.frozen import read
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading, privatized


def recover(
    model: pm.Model | None = None, idata: DataTree | None = None, *, random_seed=None
) -> DataTree:
    r"""Add exact posterior draws of the confidential statistics to a result.

    Given a posterior draw of the parameters, the statistics that were integrated out are drawn from
    :math:`p(s \mid \theta, z)`: from two-sided tilted laws, from the joint law of mean and variance
    on the feasible region of bounded records, from jointly Normal laws, and by rejection where sums
    were integrated out by inversion.

    Names mean the same for every law. ``<record>_sum``, ``_mean``, ``_var``, ``_count`` and
    ``_counts`` are statistics of the records themselves, without public constants and factors:
    `x_sum` is the sum of x where ``2 * x.sum() + 3``, ``(x - 20).sum()`` or ``(1 - x).sum()``
    was released. Identically distributed Normal records have a mean; groups of Normal records have
    one where the mean was released, up to sign and a constant. ``<record>`` is the records, where
    they were released one by one; randomized responses have counts. With several releases, the name
    of the release follows that of the record. Any other released value, a weighted or clamped sum
    say, is ``<release>_confidential``: the value that the noise was added to, constants and factors
    included. Latent variables of `collapse(to="statistics")` are named likewise.

    Parameters
    ----------
    model : pm.Model, optional
        The model that was sampled, with its records or collapsed to its marginal.
    idata : DataTree
        Its result; its posterior must hold the free parameters.
    random_seed : optional
        Seed or generator.

    Returns
    -------
    DataTree
        A copy of `idata` with the statistics in its posterior, and with the number of records where
        that is unknown. Dims, coords and integer types are those of the records, or of the release
        whose entries the statistics are.

    Raises
    ------
    ValueError
        No result; a model of which nothing was integrated out; a result without parameters or
        statistics that the draws need.
    NotImplementedError
        Naming the statistic that cannot be drawn, and why.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.GaussianMechanism(9.3), observed=34.3)
    >>> short = {"draws": 100, "tune": 100, "chains": 2, "progressbar": False}
    >>> idata = dp.sample(model, random_seed=1, **short)
    >>> sorted(dp.recover(model, idata, random_seed=2)["posterior"].data_vars)
    ['lead_mean', 'mu']
    """
    reading = read(model, "dp.recover(model, idata)")
    if idata is None:
        raise ValueError("recover needs the result of sampling: dp.recover(model, idata)")
    rng = get_random_generator(random_seed)
    posterior = idata["posterior"].to_dataset()
    with interruptible(), Stages(progressbar=True, quiet=False), said_when_compiling():
        statistics = _recovered(reading, posterior, rng)
    result = idata.copy()
    result["posterior"] = DataTree(posterior.assign(statistics))
    return result


def _recovered(reading: Reading, posterior: xr.Dataset, rng) -> dict[str, Any]:
    statistics: dict[str, Any] = {}
    model, is_integrated = reading.model, False
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, IntegratedReleaseRV):
            is_integrated, names = True, rv.owner.op.law.names
            if not names or not set(names) <= set(posterior):
                statistics |= _drawn(model, rv, rv, posterior, rng)
    for group in integrable(reading) if privatized(reading) else []:
        is_integrated, law, jointly = True, None, None
        with suppress(Declined, ValueError):  # `change` tries the laws of last resort, too
            law = law_of(reading, group)
        if law is not None:
            jointly = law.recovered(posterior, rng)
        if jointly is not None:
            statistics |= jointly
            continue
        try:
            changes = change(reading, group, law.recovered_on if law else "marginal")
            run_trials(changes.trials)
        except Declined as why:
            record_names = [str(rv.name) for rv in group.records]
            raise Declined(
                str(why),
                instead=f"Name the statistic, as a pm.Deterministic of {record_names} in the "
                f"model: dp.sample keeps it where the records are sampled. "
                f"var_names={record_names} keeps the records themselves",
            ) from None
        for name, (added, _) in changes.added.items():
            added.name = name
        for release, rv in changes.replaced.items():
            rv.name = release.name
            if not set(rv.owner.op.law.names) & set(posterior):
                statistics |= _drawn(model, rv, release, posterior, rng)
    if not is_integrated:
        raise ValueError(
            "nothing was integrated out of this model: there is nothing to recover, all of its "
            "variables are in the result of dp.sample"
        )
    return statistics


def _drawn(model: pm.Model, rv, release, posterior: xr.Dataset, rng) -> dict[str, xr.DataArray]:
    """Draw statistics that were integrated out of a release, with dims and coords of the model."""
    value = release if release in model.free_RVs else model.rvs_to_values[release]
    drawn = rv.owner.op.law.recovered(rv, value, posterior, rng)
    return {name: _labelled(model, rv, name, drawn[name][1]) for name in drawn}


def _labelled(model: pm.Model, rv, name: str, drawn: np.ndarray) -> xr.DataArray:
    """Return draws with the dims and coords of the model."""
    (*draws, shape), dims = (*drawn.shape[:2], drawn.shape[2:]), None
    if name in model.named_vars:  # the records themselves
        shape, dims = lengths(model[name]), model.named_vars_to_dims.get(name)
    if dims is None and rv.owner.op.law.by_entry and shape == lengths(model[rv.name]):
        dims = model.named_vars_to_dims.get(rv.name)
    names = [d or f"{name}_dim_{i}" for i, d in enumerate(dims or [None] * len(shape))]
    coords = {d: np.array(model.coords[d]) for d in names if model.coords.get(d) is not None}
    return xr.DataArray(drawn.reshape(*draws, *shape), coords, ("chain", "draw", *names))


def predict_records(
    model: pm.Model | None = None,
    idata: DataTree | None = None,
    *,
    size: int | None = None,
    given: Mapping[str, ArrayLike] | None = None,
    random_seed=None,
) -> xr.DataArray | xr.Dataset:
    """Draw new records from the posterior predictive, truncated to the stated bounds.

    Parameters
    ----------
    model : pm.Model, optional
        The model with its records (not a collapsed one).
    idata : DataTree
        A result with the free parameters in its posterior.
    size : int, optional
        Number of new records for each posterior draw; by default that of `given`, or one. For a
        `LogLinear` it is its number of rows, if that is public: each draw gives one synthetic file.
    given : dict, optional
        For rows of several variables, values of some variables by name, one for each new record or
        a single one: the other variables are drawn given these values. With the covariates of a
        regression, the draws are its posterior predictive at new covariates.
    random_seed : optional
        Seed or generator.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        For a vector of records, an array named after it, with dimensions chain, draw, new_record.
        Without bounds the records are Normal, with bounds a Normal truncated to them at each draw.
        For rows of several variables, a dataset with an array for each variable that is drawn;
        variables in `given` are coordinates. For a `LogLinear`, a dataset with an array for each
        column: two bytes a value, so take few draws, ``idata.isel(draw=slice(None, None, 40))``.
        Values are numbers of levels; what they stand for is ``new["job"].attrs["levels"]``, as
        ``pandas.Categorical.from_codes`` takes it.

    Raises
    ------
    ValueError
        No result; a `size` below 1; not one vector of records, or rows of them; values in `given`
        that do not fit, or leave nothing to draw; `given` for a `LogLinear`.
    NotImplementedError
        Records that are not Normal.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.GaussianMechanism(9.3), observed=34.3)
    >>> short = {"draws": 100, "tune": 100, "chains": 2, "progressbar": False}
    >>> idata = dp.sample(model, random_seed=1, **short)
    >>> dp.predict_records(model, idata, size=3, random_seed=2).shape  # chain, draw, new_record
    (2, 100, 3)
    """
    reading = read(model, "dp.predict_records(model, idata)")
    if idata is None:
        raise ValueError("predict_records needs the result: dp.predict_records(model, idata)")
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: write the number of new records")
    tables = [rv for rv in reading.model.free_RVs if type(rv.owner.op) in NEW_ROWS]
    groups = record_groups(reading)
    if len(groups) + len(tables) != 1:
        raise ValueError(
            f"predict_records needs a model with one vector of released records; found "
            f"{[rv.name for rv in (*privatized(reading), *tables)]}"
        )
    posterior = idata["posterior"].to_dataset()
    rng = get_random_generator(random_seed)
    for rv in tables:
        if given:
            raise ValueError(
                f"given= holds some columns while others are drawn; rows of {rv.name!r} are drawn "
                f"whole: leave it out, and keep the rows that have these values"
            )
        return NEW_ROWS[type(rv.owner.op)](rv, posterior, size, rng)
    if is_rows(groups[0]):
        return predict_rows(reading.model, groups[0], posterior, size, given or {}, rng)
    if given:
        raise ValueError(
            f"given= holds some columns of a row while others are drawn; the records "
            f"{groups[0].name!r} are a single vector"
        )
    law = law_of(reading, groups[0])
    if not isinstance(law, OneColumn):
        alike = all(isinstance(rv.owner.op, NormalRV) for rv in groups[0].records)
        raise Declined(
            f"the records {groups[0].name!r} are not "
            + ("alike, as their means or variances differ" if alike else "Normal")
            + ": predict_records draws Normal records of one mean and one variance, and rows. "
            "Write new ones as a variable without data, pm.Normal('new', theta, sigma) say, and "
            "call pm.sample_posterior_predictive(idata, var_names=['new'])"
        )
    column = law.column
    rows = per_draw(posterior, as_row(column.mean, column.variance))
    dims = posterior.sizes["chain"], posterior.sizes["draw"]
    m, v = rows[..., 0].T.reshape(2, *dims, 1)
    drawn = draw_normal(rng, m, np.sqrt(v), (*dims, size or 1), column.bounds)
    return xr.DataArray(
        drawn,
        dims=("chain", "draw", "new_record"),
        coords={"chain": posterior["chain"], "draw": posterior["draw"]},
        name=column.name,
    )
