"""`PrivateObservation`: say in a PyMC model what was released."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.held import Held, held, shown
from pymc_dp.graphs.ranges import check_wraparound
from pymc_dp.graphs.shapes import known_shape, of_nothing
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws.no_records import value_of_nothing
from pymc_dp.laws.one_value import marginal_release_rv
from pymc_dp.laws.possible_starts import start_where_possible
from pymc_dp.mechanisms.alignment import placed
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.checks import by_which_rule, check_attainable, check_double, is_published
from pymc_dp.mechanisms.ratios import divided
from pymc_dp.mechanisms.release import (
    FeasibleMoments,
    FeasibleRegression,
    PrivateReleaseRV,
    release_rv,
)
from pymc_dp.observation_checks import (
    check_confidential,
    check_dims,
    check_noise_shape,
    check_records,
    warn_of_one_value,
)
from pymc_dp.published import Release
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.columns import simple_regression
from pymc_dp.reading.fits import check_fits
from pymc_dp.reading.model import Reading, release_statistic
from pymc_dp.reading.normal_column import normal_moments
from pymc_dp.reading.record_lengths import record_count
from pymc_dp.step_methods import choose_again

_log = logging.getLogger("pymc.dp")


def PrivateObservation(
    name: str,
    statistic,
    mechanism: Mechanism | Release,
    *,
    observed=None,
    bounds: tuple | None = None,
    dims: str | tuple[str, ...] | None = None,
) -> TensorVariable:
    r"""Declare a differentially private release of a statistic of the model's confidential data.

    Registers an ordinary observed random variable with density
    :math:`\eta(z \mid s)`, the mechanism's density around the statistic :math:`s`. Prior and
    posterior predictive sampling, `pm.observe`, `pm.do` and `log_likelihood` work on it.

    Parameters
    ----------
    name : str
        Name of the release in the model.
    statistic : tensor_like, list of tensor_like, or unregistered distribution
        The confidential statistic, an expression of the model's random variables. A list of
        equal shapes is stacked. An unregistered ``X.dist(...)`` is a confidential value
        that is integrated out, in closed form or by quadrature.
    mechanism : Mechanism or Release
        The public noise. Its parameters broadcast against the statistic; only a noisy number may
        divide them, as in ``a / w`` with ``LaplaceMechanism(10 / w)``, where w is a `pm.Laplace`, a
        `pm.Normal` or another release. A `Release` carries the published value too.
    observed : array_like, pandas, polars or xarray object, or pm.Data, optional
        The published value, of exactly the statistic's shape. Where it has labels and `dims` have
        coords, it is put in their order, as noise parameters are; else it is taken by position,
        and noise parameters with labels are put in the order of its own.
        The dims of an xarray are those of the release.
        None leaves the release free: prior predictive, or `pm.observe` later.
    bounds : (lower, upper), optional
        The records are publicly known to lie in [a, b]. Adds :math:`\log 1[(m, v)
        \text{ feasible}] + \log 1[(\bar y, S^2) \text{ feasible}]` to the log density, for the
        mean m and variance v of the records' law and their sample mean and variance
        (:math:`v \le (m-a)(b-m)`, :math:`\frac{n-1}{n} S^2 \le (\bar y-a)(b-\bar y)`), without a
        normaliser; the records themselves are not confined to [a, b]. Random draws outside of the
        region are NaN. For a simple regression of y on x, ``(lower, upper)`` is one interval for
        both, or two corners of their box, ``((a_x, a_y), (b_x, b_y))``: the sums of the columns and
        of their products then are those of rows in the box, the line meets it, and the error
        variance is at most :math:`(b_y - a_y)^2 / 4`. Where a regression's sums are published in
        several releases, each states the bounds of the records in it; one of x alone confines the
        mean and variance of x, as above.
    dims : str or tuple of str, optional
        Dimension names of the release. By default those of a `Release`, whose coords are added
        to the model; where the model has such a dimension, its labels must be the same.

    Returns
    -------
    TensorVariable
        The release, registered with the model.

    Raises
    ------
    ValueError
        Naming the release: a value, noise, dims or coords whose shape or labels do not fit the
        statistic, a value that the mechanism cannot publish, a statistic that depends on no random
        variable, impossible bounds, no value beside a `Release`.
    TypeError
        A mechanism or statistic of another kind, noise that depends on a random variable but for a
        noisy number that divides it.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> [rv.name for rv in model.observed_RVs], z.type.shape
    (['z'], ())
    """
    model = pm.modelcontext(None)
    check_double(model.free_RVs)
    coords: dict[str, Sequence[Any]] = {}
    if isinstance(mechanism, Release):
        if observed is not None:
            raise ValueError(
                f"{name!r}: the Release already carries the published value; leave observed= out"
            )
        if dims is None or (dims,) == mechanism.dims or dims == mechanism.dims:
            dims, coords = mechanism.dims, _new_coords(name, mechanism, model)
        observed, mechanism = mechanism.held, mechanism.mechanism
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"{name!r}: the third argument must be a mechanism such as "
            f"dp.LaplaceMechanism(scale), or a dp.Release; got {type(mechanism).__name__}"
        )
    if not (observed is None or isinstance(observed, Variable)):
        observed = _held(name, observed)
        dims = observed.dims if dims is None else dims
    if isinstance(dims, str):
        dims = (dims,)
    labels = {**model.coords, **coords}
    if isinstance(observed, Held):
        try:
            observed = observed.placed(dims, labels)
        except ValueError as error:
            raise ValueError(f"{name!r}: observed {error}") from None
    mechanism = placed(mechanism, dims, labels, name, getattr(observed, "labels", ()))
    statistic = _stack(name, statistic)
    try:
        check_fits([statistic])
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None

    statistic, mechanism = divided(name, statistic, mechanism, model)
    check_wraparound(name, statistic)
    unnamed = [rv for rv in nearest_rvs([statistic]) if rv not in model.named_vars.values()]
    of_each = len(unnamed) == 1 and known_shape(unnamed[0]) == known_shape(statistic)
    if unnamed and unnamed == nearest_rvs([statistic]) and (statistic in unnamed or of_each):
        check_noise_shape(name, statistic, mechanism)
        if mechanism.statistic_ndim:
            raise ValueError(
                f"{name!r}: {type(mechanism).__name__} makes one release of all of its "
                f"statistic, and a .dist(...) is integrated out entry by entry: register it with "
                f"the model, x = pm...('x', ...), and release x"
            )
        if bounds is not None:
            raise ValueError(
                f"{name!r}: bounds= is a statement about records; a .dist(...) has none. "
                f"Register the records with the model and release a statistic of them"
            )
        rv = marginal_release_rv(statistic, mechanism, name=name)
        rv.tag.dp_written = statistic, mechanism  # for `check`
    else:
        check_confidential(name, statistic, model)
        warn_of_one_value(name, statistic)
        for part in of_nothing(statistic):
            value_of_nothing(part, name)  # refuses 0 / 0
        check_noise_shape(name, statistic, mechanism)
        rv = _constrained(name, statistic, mechanism, bounds, model)
        rv.name = name
        if statistic.dtype in ("float16", "float32") and leaves_gaps(rv):
            raise ValueError(
                f"{name!r}: rounding in {statistic.dtype} would decide whether whole-number noise "
                f'can make the published value: write .astype("float64") on what is cast'
            )
        check_records(name, model, rv)
    observed = _check_observed(name, rv, observed, mechanism)
    check_attainable(name, mechanism, observed, statistic)
    check_dims(name, rv, dims, coords, model)
    # All checks are done: a refused release has left the model as it was.
    model.add_coords(coords)
    rv = model.register_rv(rv, name, observed=observed, dims=dims)
    if observed is not None and isinstance(rv.owner.op, PrivateReleaseRV):
        start_where_possible(model, rv)
    # With another release a variable may lose its exact draw: choose steps again for all.
    touched = nearest_rvs([release_statistic(rv)])
    choose_again(Reading(model), [v for v in touched if v in model.free_RVs])
    return rv


def _new_coords(name: str, release: Release, model: pm.Model) -> dict[str, Sequence[Any]]:
    """Return the coords of a release that the model lacks; refuse coords that contradict it."""
    missing: dict[str, Sequence[Any]] = {}
    for dim, length in zip(release.dims or (), release.value.shape, strict=bool(release.dims)):
        stated = (release.coords or {}).get(dim)
        if dim not in model.coords:
            missing[dim] = range(length) if stated is None else stated
            continue
        labels = model.coords[dim]
        if stated is not None and labels is not None and tuple(labels) != stated:
            raise ValueError(
                f"{name!r}: the release labels {dim!r} {shown(stated)}, the model has "
                f"{shown(labels)}: write release.reindex(model.coords) where these are the same in "
                f"another order, else give dims= another name"
            )
        known = known_value(model.dim_lengths[dim])
        if known is not None and known != length:
            raise ValueError(
                f"{name!r}: the release has {length} entries along {dim!r}, the model has {known}: "
                f"give the dimensions of this one another name, PrivateObservation(..., dims=...)"
            )
    return missing


def _stack(name: str, statistic) -> TensorVariable:
    several = isinstance(statistic, list | tuple)
    try:
        parts = [pt.as_tensor(part) for part in (statistic if several else [statistic])]
    except (TypeError, ValueError, NotImplementedError):
        parts = []
    if any(hasattr(part, "dims") for part in (statistic if several else [statistic])):
        raise TypeError(
            f"{name!r}: variables of pymc.dims are not read. Write the records with plain "
            f"distributions, which take dims= as well: pm.Normal(..., dims=...)"
        )
    if not parts:
        equal = ": write pt.eq(x, 1) for x == 1" if isinstance(statistic, bool) else ""
        raise TypeError(
            f"{name!r}: the statistic must be an expression of the model's variables such as "
            f"records.mean(), a list of them, or an X.dist(...); got {statistic!r}{equal}"
        )
    if not several:
        return parts[0]
    shapes = {part.type.shape for part in parts}
    if len({part.type.ndim for part in parts}) > 1 or any(
        len({s for s in sizes if s is not None}) > 1 for sizes in zip(*shapes, strict=False)
    ):
        raise ValueError(
            f"{name!r}: the statistics have different shapes "
            f"{[part.type.shape for part in parts]} and cannot be stacked: write "
            f"pt.concatenate([...]) of vectors, with one noise scale per entry"
        )
    return pt.stack(parts)


def _constrained(name, statistic, mechanism, bounds, model) -> TensorVariable:
    if bounds is None:
        return release_rv(statistic, mechanism)
    if mechanism.statistic_ndim:
        raise ValueError(
            f"{name!r}: bounds= is for noise that is added to each entry of a statistic, and "
            f"that of {type(mechanism).__name__} is not: leave it out"
        )
    sources = [rv for rv in model.free_RVs if rv in nearest_rvs([statistic])]
    ends = _interval_ends(name, bounds, len(sources))
    if len(sources) == 1:
        [records] = sources
        n = record_count(records)
        if n < 2:
            raise ValueError(f"{name!r}: bounds= needs n >= 2 records; {records.name!r} has {n}")
        law_mean, law_variance = normal_moments(records)
        moments = FeasibleMoments(law_mean, law_variance, records.mean(), records.var(ddof=1))
        lower, upper = (float(end[0]) for end in ends)
        return release_rv(statistic, mechanism, moments=moments, bounds=(lower, upper), n=n)
    needed = (
        f"{name!r}: bounds= needs a statistic of one vector of records, or of x and y of a simple "
        f"regression"
    )
    if len(sources) != 2 or any(rv.type.ndim != 1 for rv in sources):
        raise ValueError(f"{needed}; this one uses {[rv.name for rv in sources]}")
    x, y = sources
    try:
        n, *law = simple_regression(x, y)
    except NotImplementedError as error:
        raise ValueError(f"{needed}: {error}") from None
    sums = x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()
    box = tuple(tuple(float(v) for v in end) for end in ends)
    return release_rv(
        statistic, mechanism, moments=FeasibleRegression(*law, *sums), bounds=box, n=n
    )


def _interval_ends(name: str, bounds, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends of the records' bounds, one for each variable."""
    try:
        lower, upper = (np.asarray(b, "float64") for b in bounds)
        if any(b is None for b in bounds) or any(
            end.ndim and end.shape != (width,) for end in (lower, upper)
        ):
            raise ValueError
        lower, upper = (np.broadcast_to(end, (width,)) for end in (lower, upper))
    except (TypeError, ValueError):
        raise ValueError(
            f"{name!r}: bounds must be a pair (lower, upper), of numbers or for x and y of a "
            f"regression of corners ((a_x, a_y), (b_x, b_y)); got {bounds!r}"
        ) from None
    if not (np.all(np.isfinite(lower)) and np.all(np.isfinite(upper)) and np.all(lower < upper)):
        raise ValueError(
            f"{name!r}: bounds=({bounds[0]}, {bounds[1]}) is not an interval: write the public "
            f"range of one record as bounds=(lower, upper) with lower < upper, both finite; for x "
            f"and y of a regression as ((a_x, a_y), (b_x, b_y))"
        )
    return lower, upper


def _held(name: str, observed) -> Held:
    try:
        published = held(observed)
    except TypeError:
        raise TypeError(
            f"{name!r}: observed must be a number, an array or a pm.Data; got {observed!r}. What "
            f"was withheld is NaN: pd.read_csv(file, na_values='*') reads a mark as that"
        ) from None
    # As in PyMC: values with a dtype keep it.
    typed = hasattr(observed, "dtype") or isinstance(observed, Held)
    return published if typed else replace(published, numbers=published.numbers.astype("float64"))


def _check_observed(name: str, rv: TensorVariable, observed, mechanism: Mechanism) -> Any:
    if observed is None:
        return None
    if isinstance(observed, SharedVariable):
        value = held(observed.get_value(borrow=True)).numbers  # pm.set_data masks NaN
    elif isinstance(observed, Constant):
        value = held(observed.data).numbers
    elif isinstance(observed, Variable):
        if nearest_rvs([observed]):
            raise TypeError(
                f"{name!r}: observed depends on the random variable {nearest_rvs([observed])[0]}; "
                f"it must be the published number, an array or a pm.Data that holds it"
            )
        return observed  # PyMC evaluates symbolic values
    else:
        observed = value = observed.numbers
    expected = known_shape(rv)
    if len(value.shape) != len(expected) or any(
        e is not None and e != got for e, got in zip(expected, value.shape, strict=False)
    ):
        raise ValueError(
            f"{name!r}: observed has shape {value.shape}, the released statistic has shape "
            f"{expected}: give {mechanism.one_release}"
        )
    if not np.all(is_published(mechanism, value)):
        raise ValueError(
            f"{name!r}: observed contains NaN, masked or infinite values. Where entries were "
            f"withheld, {by_which_rule(mechanism)}. An infinite value cannot have been "
            f"published"
        )
    if isinstance(observed, np.ndarray) and np.isnan(value).any():
        return pt.constant(value.astype("float64"))  # PyMC would impute NaN of an array
    return observed
