"""Draw confidential statistics and new records for a result that was sampled without them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike
from pymc.util import get_random_generator
from pytensor.tensor.random.basic import NormalRV
from xarray import DataTree

from pymc_dp.graphs.compiled import said_when_compiling
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import Given, per_draw
from pymc_dp.graphs.interrupts import interruptible
from pymc_dp.graphs.questions import known_shape, lengths
from pymc_dp.graphs.stages import Stages
from pymc_dp.kernels import njit
from pymc_dp.kernels.moments.feasible import draw_feasible, make_problem
from pymc_dp.ladder.collapse import integrable
from pymc_dp.ladder.predict import draw_normal, predict_rows
from pymc_dp.laws import find_pair, row_sampler
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import IntegratedReleaseRV, in_results, recovered
from pymc_dp.laws.inversion.law import draw_sums
from pymc_dp.laws.moments.columns import Columns
from pymc_dp.laws.moments.feasible import BoundedMoments, moment_noises, of_both
from pymc_dp.laws.moments.one_column import OneColumn
from pymc_dp.laws.moments.rows import GroupedColumns
from pymc_dp.laws.one_value import Independent, Pieces
from pymc_dp.laws.shown import confidential
from pymc_dp.laws.sum_law import change, is_rows, law_of, run_trials
from pymc_dp.laws.unknown_sizes.counted_rows import CountedRows
from pymc_dp.laws.unknown_sizes.density import OfUnknownSize, Part
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading, privatized, read
from pymc_dp.reading.normal_column import NormalColumn
from pymc_dp.step_methods.base import as_row


def recover(
    model: pm.Model | None = None, idata: DataTree | None = None, *, random_seed=None
) -> DataTree:
    r"""Add exact posterior draws of the confidential statistics to a result.

    Given a posterior draw of the parameters, the statistics that were integrated out are drawn from
    :math:`p(s \mid \theta, z)`: two-sided tilted laws, on the feasible region of bounded records
    their joint law, jointly Normal ones, and by rejection sums that were integrated out by
    inversion.

    Names mean the same for every law. ``<record>_sum``, ``_mean``, ``_var``, ``_count`` and
    ``_counts`` are statistics of the records themselves, without public constants and factors:
    `x_sum` is the sum of x where ``2 * x.sum() + 3``, ``(x - 20).sum()`` or ``(1 - x).sum()``
    was released. Normal records that are alike have a mean; by group they have one where it was
    released as it is, up to its sign and a constant. ``<record>`` is the records, where one after
    the other was released; answers that were changed at random have counts. Of several releases,
    the name of each follows the record's. A released value that is none of these, a weighted or
    clamped sum say, comes back as ``<release>_confidential``: the value that the noise was added
    to, constants and factors included. Latent variables of
    `collapse(to="statistics")` are named likewise.

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
        A copy of `idata` with these in its posterior; of records of unknown number, with this
        number too. Dims, coords and integer types are those of the records, or of the release
        whose entries they are.

    Raises
    ------
    ValueError
        No result; a model of which nothing was integrated out; a result without the parameters, or
        the statistics, that are needed.
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
        found = _recovered(reading, posterior, rng)
    result = idata.copy()
    result["posterior"] = DataTree(posterior.assign(found))
    return result


def _recovered(reading: Reading, posterior: xr.Dataset, rng) -> dict[str, Any]:
    found: dict = {}
    for rv, value in _integrated_out(reading, posterior):
        if isinstance(rv, OneColumn):
            column, moments = rv.column, _moments_of_column(reading.model, rv.column)
            found |= _draw_feasible(rv.names, moments, column.n, column.bounds, posterior, rng)
        else:
            drawn = recovered(rv.owner.op.law, rv, value, posterior, rng)
            found |= {name: _labelled(reading.model, rv, name, drawn[name][1]) for name in drawn}
    return found


def _labelled(model: pm.Model, rv, name: str, drawn: np.ndarray) -> xr.DataArray:
    """Return draws with the dims and coords that the model has for their entries."""
    (*draws, shape), dims = (*drawn.shape[:2], drawn.shape[2:]), None
    if name in model.named_vars:  # the records themselves
        shape, dims = lengths(model[name]), model.named_vars_to_dims.get(name)
    if dims is None and rv.owner.op.law.by_entry and shape == lengths(model[rv.name]):
        dims = model.named_vars_to_dims.get(rv.name)
    names = [d or f"{name}_dim_{i}" for i, d in enumerate(dims or [None] * len(shape))]
    coords = {d: np.array(model.coords[d]) for d in names if model.coords.get(d) is not None}
    return xr.DataArray(drawn.reshape(*draws, *shape), coords, ("chain", "draw", *names))


def _integrated_out(reading: Reading, posterior: xr.Dataset):
    """Yield what was integrated out of a model and is not in the posterior, with its value."""
    any_found, model = False, reading.model
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, IntegratedReleaseRV):
            any_found = True
            found = rv.owner.op.law.names
            if not found or not set(found) <= set(posterior):
                yield rv, model.rvs_to_values[rv]
    for group in integrable(reading) if privatized(reading) else []:
        any_found, law = True, None
        with suppress(Declined, ValueError):  # `change` may find a law of last resort
            law = law_of(reading, group)
        if isinstance(law, Columns | GroupedColumns):
            own = f"{law.rows.name}_mean"
            if own not in posterior:
                raise ValueError(
                    f"the statistics of the rows are part of a result that was sampled on them: "
                    f"this one has no {own!r}. Sample with rung='statistics'"
                )
            continue
        if isinstance(law, OneColumn) and law.column.bounds is not None:
            if not set(law.names) & set(posterior):
                yield law, None
            continue
        try:
            counted = isinstance(law, CountedRows)  # whose number alone is summed over
            changes = change(reading, group, "statistics" if counted else "marginal")
            run_trials(changes.trials)
        except Declined as why:
            names = [str(rv.name) for rv in group.records]
            raise Declined(
                str(why),
                instead=f"Give what is looked for a name, as a pm.Deterministic of {names} in the "
                f"model: dp.sample keeps it where the records are sampled. var_names={names} keeps "
                f"the records themselves",
            ) from None
        for name, (added, _) in changes.added.items():
            added.name = name
        for release, rv in changes.replaced.items():
            rv.name = release.name
            if not set(rv.owner.op.law.names) & set(posterior):
                yield rv, model.rvs_to_values[release]
    if not any_found:
        raise ValueError(
            "nothing was integrated out of this model: there is nothing to recover, all of its "
            "variables are in the result of dp.sample"
        )


def _moments_of_column(model: pm.Model, column: NormalColumn):
    """Return `BoundedMoments.problem` of bounded records."""
    noises: dict = {}
    for release in column.releases:
        value = model.rvs_to_values[release.rv]
        entries, stacked = release.mean_and_variance(), release.rv.type.ndim == 1
        found = moment_noises(entries, release.mechanism, value, stacked)
        if set(found) & set(noises):
            raise Declined(
                f"a moment of {column.name!r} is released twice: sample with rung='statistics', "
                f"which keeps the statistics"
            )
        noises |= found
    return column.mean, column.variance, *of_both(noises)


@recovered.register
def _recover_independent(law: Independent, rv, value, posterior, rng):
    noise, parameters = rv.owner.op.split(rv.owner.inputs)
    drawn = _draw_statistic(law, value, noise, parameters, posterior, rng)
    return _statistic_in_results(law, drawn, parameters, posterior)


def _statistic_in_results(law: Independent, drawn, parameters, posterior):
    _, like = law.statistic.law(
        *parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True
    )
    whole = not like.dtype.startswith("float")
    return in_results(posterior, law.statistic.name, law.statistic.shown(drawn), whole=whole)


def _draw_statistic(law: Independent, value, noise, parameters, posterior, rng) -> np.ndarray:
    mechanism, z = law.standardised(value, noise)
    pair = find_pair(law.statistic.law, mechanism)
    columns = z, *mechanism.parameters, -np.inf, np.inf, *pair.parameters(*parameters)
    drawn = _sampled(pair, columns, known_shape(value), posterior, rng)
    return np.where(law.statistic.empty, 0.0, drawn)


def _sampled(
    pair, columns, shape, posterior, rng, given: Given = MappingProxyType({})
) -> np.ndarray:
    """Draw by a pair what has this shape for each draw of the posterior."""
    rows = per_draw(posterior, as_row(*columns), given)
    shape = len(rows), *shape
    rows = np.ascontiguousarray(np.moveaxis(rows, 1, 0).reshape(rows.shape[1], -1))
    return row_sampler(pair.draw, len(rows))(rng, rows).reshape(shape)


@recovered.register
def _recover_pieces(law: Pieces, rv, value, posterior, rng):
    noise, parameters = rv.owner.op.split(rv.owner.inputs)
    found: dict = {}
    whole = np.zeros((posterior.sizes["chain"] * posterior.sizes["draw"], *law.shape))
    for piece, at, z, mechanism, own in law.of_each(value, noise, parameters):
        drawn = _draw_statistic(piece, z, mechanism, own, posterior, rng)
        whole.reshape(len(whole), -1)[:, at] = piece.statistic.released(drawn)
        if at.ndim and drawn[0].size == whole[0].size:  # one value stays one, as on the statistics
            drawn = drawn.reshape(whole.shape)
        found |= _statistic_in_results(piece, drawn, own, posterior)
    if (name := confidential(rv)) in law.names:
        found |= in_results(posterior, name, whole)
    return found


@recovered.register
def _recover_size(law: OfUnknownSize, rv, value, posterior, rng):
    if not law.names:
        return {}  # it comes with the last of the releases
    mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
    summed, chance = law.chances(value, mechanism, *parameters)
    with np.errstate(divide="ignore"):
        weights = np.log(np.maximum(per_draw(posterior, chance), 0.0))
    # By Gumbel noise the largest is a draw.
    k = np.argmax(weights + rng.gumbel(size=weights.shape), axis=-1)
    n = law.windows.first + k
    found: dict = {}
    if law.number is not None:
        found |= in_results(posterior, law.number, n.reshape(-1, *law.shape))
    if not law.shown:
        return found
    _, record, _ = law.split(parameters)
    sums = np.zeros((len(n), law.entries[0].sums.type.shape[0]))
    for at, z, own, constant, slope, place in summed:
        numbers = constant[np.arange(at.size), k[:, at]], slope[np.arange(at.size), k[:, at]]
        sums[:, place] = _totals(
            law, posterior, rng, n[:, at], *numbers, z, own, [p[at] for p in record]
        )  # fmt: skip
    for name, what in law.shown.items():
        if isinstance(what, Part):
            drawn = (sums[:, what.place] - n[:, what.place] * what.added) / what.factor
        else:
            entries = law.entries[what]
            constant, slope = (
                numbers[np.arange(entries.group.size), k[:, entries.group]]
                for numbers in law.numbers[what]
            )
            drawn = (constant + slope * sums[:, entries.place]).reshape(-1, *entries.shape)
        whole = law.records.summand is None and not law.records.law.dtype.startswith("float")
        found |= in_results(posterior, name, drawn, whole=whole)
    return found


def _totals(law: OfUnknownSize, posterior, rng, n, constant, slope, z, mechanism, record):
    """Draw the sums over records whose numbers were drawn, given their release.

    `n` and what follows have a row for each draw and a column for each group.
    """
    records = law.records
    alone = (n == 0) | (slope == 0) | ~np.isfinite(slope)
    slope, constant = np.where(alone, 1.0, slope), np.where(alone, 0.0, constant)
    times = [pt.vector(dtype="float64", shape=n.shape[1:]) for _ in range(2)]
    given = {times[0]: constant, times[1]: slope}
    if records.summand is None:
        numbers = pt.vector(dtype="int64", shape=n.shape[1:])
        noise = mechanism.with_parameters(*(p / pt.abs(times[1]) for p in mechanism.parameters))
        sums, own = sum_of(records.law, numbers, *record)
        pair = find_pair(sums, noise)
        row = (z - times[0]) / times[1], *noise.parameters, -np.inf, np.inf, *pair.parameters(*own)
        given = {numbers: np.maximum(n, 1), **given}
        drawn = _sampled(pair, row, n.shape[1:], posterior, rng, given)
        return np.where(alone, 0.0, drawn)
    noise = records.summand.noise_parts(mechanism)
    noisy = [(z - times[0]) / times[1], *(part / abs(times[1]) for part in noise)]
    doubles = [p.astype("float64") for p in record]
    return draw_sums(
        law.names[-1], rng, posterior, records.law, doubles, records.summand,
        np.where(alone, 0, n), noisy, given,
    )  # fmt: skip


@recovered.register
def _recover_feasible(law: BoundedMoments, rv, value, posterior, rng):
    mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
    moments = law.problem(value, mechanism, *parameters)
    return _draw_feasible(law.names, moments, law.n, law.bounds, posterior, rng)


def _draw_feasible(names, moments, n, bounds, posterior, rng):
    rows = per_draw(posterior, as_row(*moments))
    rows = np.ascontiguousarray(rows[..., 0])
    drawn = _feasible_draws(rng, float(n), float(bounds[0]), float(bounds[1]), rows)
    mean, variance = names
    return in_results(posterior, mean, drawn[:, 0]) | in_results(posterior, variance, drawn[:, 1])


@njit(cache=True, nogil=True, error_model="numpy")
def _feasible_draws(rng, n, lower, upper, rows):
    out = np.empty((rows.shape[0], 2))
    for i in range(rows.shape[0]):
        m, v, lam1, tau1, z1, lam2, tau2, z2 = rows[i]
        problem, _ = make_problem(n, m, v, lam1, tau1, z1, lam2, tau2, z2, lower, upper)
        out[i] = draw_feasible(rng, problem)
    return out


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
        New records for each posterior draw: as many as `given` has, or one.
    given : dict, optional
        For rows of several variables, the values of some of them by name, one for each new record
        or a single one: the others are drawn given these. With the covariates of a regression,
        that is its posterior predictive at new covariates.
    random_seed : optional
        Seed or generator.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        For a vector of records, an array named after it, with dimensions chain, draw, new_record.
        Without bounds the records are Normal, with bounds a Normal truncated to them at each draw.
        For rows of several variables, a dataset with such an array for each variable that is drawn;
        those that are given are coordinates.

    Raises
    ------
    ValueError
        No result; a `size` below 1; not one vector of records, or rows of them; values in `given`
        that do not fit, or leave nothing to draw.
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
    found = record_groups(reading)
    if len(found) != 1:
        raise ValueError(
            f"predict_records needs a model with one vector of released records; found "
            f"{[rv.name for rv in privatized(reading)]}"
        )
    posterior = idata["posterior"].to_dataset()
    rng = get_random_generator(random_seed)
    if is_rows(found[0]):
        return predict_rows(reading.model, found[0], posterior, size, given or {}, rng)
    if given:
        raise ValueError(
            f"given= holds some columns of a row while others are drawn; the records "
            f"{found[0].name!r} are a single vector"
        )
    law = law_of(reading, found[0])
    if not isinstance(law, OneColumn):
        alike = all(isinstance(rv.owner.op, NormalRV) for rv in found[0].records)
        raise Declined(
            f"the records {found[0].name!r} are not "
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
