"""`check`: densities with integrated records, beside Monte Carlo over the model as it is written.

Nothing of the laws is used for the second: records are drawn by PyMC, statistics are evaluated as
they are written, and the density of the noise is averaged over them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.mixture import MixtureRV
from pymc.logprob.utils import ParameterValueError
from pymc.util import get_random_generator
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp, softmax

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import compile_draws, needed_draws, python_is_meant
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.stages import Stages, stage
from pymc_dp.graphs.values import PLAIN_MODE, is_random, nearest_rvs, plain_function
from pymc_dp.ladder.collapse import collapsed, left_out, try_densities
from pymc_dp.laws.integrated import all_releases
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.frozen import read
from pymc_dp.reading.model import Reading, privatized

_BLOCKS, _FIRST = 20, 50  # whose differences give the errors; draws of a block at first
_LEAST = 20_000  # draws, if there is time
_MOST = 0.05  # share of a mean that one draw may have, or its error is not known
_ENTRIES, _LARGEST = 4_000_000, 10_000_000  # records that are drawn at a time; that can be drawn
_NEAR = 24  # simulated releases, in whose mean narrow noise is wide
_TRIED, _LOOK = 400, 3.0  # draws of the prior, of which points are taken by density; seconds
_FAR = 10.0  # below the largest log density: a point that tells little
_AGREES = 0.3  # the largest difference, with its error, that is called agreement
_PRECISE, _TELLS, _SIGMAS = 0.01, 0.25, 5.0  # an error that is enough, that tells; its multiple
_ROUNDING = 1e-6
_UNITS, _OTHERS = 2_000, 10  # records one of which is changed at a time; how often, at least


@dataclass(frozen=True)
class Check:
    """What `check` found; printed, it says so in words.

    Attributes
    ----------
    agrees : bool or None
        Whether the densities agree; None if that cannot be told.
    table : pandas.DataFrame
        A row for each point: ``log_density`` of the package, ``monte_carlo``, their ``difference``
        and its standard ``error``, and ``compared``, the releases as they were "published" or
        "simulated" ones near them. Parameters that are single numbers have a column each.
    text : str
        What is said.
    """

    agrees: bool | None
    table: pd.DataFrame
    text: str

    def __repr__(self) -> str:
        """Return what was found, in words."""
        return self.text


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
        assert [rv.name for rv in density.rvs] == [rv.name for rv in written.rvs]
        observed = written.observed()
        stage("Looking for points")
        at = _points(reading.model, density, names, observed, idata, points, rng)
        for compared in ("published", "simulated"):
            values = [observed] if compared == "published" else written.simulated(at, rng, _NEAR)
            rows = []
            for i, point in enumerate(at):
                stage(f"Drawing records at point {i + 1} of {len(at)}, {compared} releases")
                limit = seconds / 2 / len(at)
                own, own_error = density.log_density(point, values, rng, limit)
                truth, error = written.log_density(point, values, rng, limit, own)
                rows.append((own, truth, own - truth, np.hypot(error, own_error)))
            found = _found(reading.model, names, at, rows, compared)
            if found.agrees is not None or left_out(ours):  # that is for the published ones alone
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


class Releases:
    """The density of the releases of a model given some variables, over draws of all others.

    With `written`, that of values whose law was integrated out at once is of what was written.
    """

    def __init__(self, model: pm.Model, names: Sequence[str], *, written: bool):
        self.rvs = [rv for rv in all_releases(model) if rv in model.observed_RVs]
        self._observed = plain_function([], [model.rvs_to_values[rv] for rv in self.rvs])
        self._theta = [model[name] for name in names]
        self._released = released = [_as_written(rv, model) if written else rv for rv in self.rvs]
        self._tensors = [
            [v for v in rv.owner.inputs if not isinstance(v.type, RandomType)] for rv in released
        ]
        self._inputs = list(dict.fromkeys(v for own in self._tensors for v in own))
        # A release may be an input of another, whose noise it scales say: its value is given.
        reached = set(ancestors(self._inputs))
        self._known = [k for k, rv in enumerate(self.rvs) if rv in reached]
        self._given = given = [*self._theta, *(self.rvs[k] for k in self._known)]
        self._drawn = [v for v in nearest_rvs(self._inputs) if v not in given]
        self.drawn = self._drawn
        self.is_drawn = bool(self._drawn)
        random = filter(is_random, ancestors(self._inputs, blockers=given))
        self._size = sum(math.prod(n or 1 for n in known_shape(v)) for v in random)
        if self._size > _LARGEST:
            raise ValueError(
                f"{self._size:,} records are too many to be drawn again and again: check the model "
                f"with fewer"
            )
        self._parts: list[np.ndarray] = []
        self._logs = self._density()
        if self.is_drawn:
            self._of_drawn = _vectorized([*given, *self._drawn], self._inputs, _plain)
            self._draw = self._drawing()
        else:
            self._fixed = plain_function(given, self._inputs)

    def _drawing(self) -> Callable:
        """Return the function of a point and a number that draws what the releases are made of."""
        outputs = [*self._inputs, *self._drawn]
        inputs = dict.fromkeys(self._given)
        for rv in filter(is_random, ancestors(outputs, blockers=self._given)):
            above = {*ancestors(rv.owner.inputs)}
            # What depends on nothing that is random or given would be drawn once for all.
            if rv not in inputs and above.isdisjoint(inputs) and not any(map(is_random, above)):
                last = next(v for v in rv.owner.inputs[::-1] if isinstance(v, TensorVariable))
                inputs[last] = None
        others = plain_function([], [v for v in inputs if v not in self._given])()
        generators: list = []

        def compiled(*graphs, **options):
            function, own = compile_draws(*graphs, **options)
            generators.extend(own)
            return function

        function = _vectorized([*inputs], outputs, compiled)

        def draw(rng, point, count):
            _seed(generators, rng)
            rows = [np.broadcast_to(v, (count, *np.shape(v))) for v in [*point, *others]]
            made = len(generators)
            found = function(*rows)
            if len(generators) > made:  # another function, whose generators were not seeded
                _seed(generators, rng)
                found = function(*rows)
            return found[: len(self._inputs)], found[len(self._inputs) :]

        return draw

    def simulated(self, points, rng: np.random.Generator, count: int) -> list[list[np.ndarray]]:
        """Return releases that are simulated at points in turn."""
        function, generators = compile_draws(self._theta, self._released, mode=PLAIN_MODE)
        _seed(generators, rng)
        return [function(*points[i % len(points)]) for i in range(count)]

    def _density(self) -> Callable:
        """Return the function of inputs and values that is the log densities of each release."""
        fresh, values = [v.type() for v in self._inputs], [rv.type() for rv in self._released]
        replaced = dict(zip(self._inputs, fresh, strict=True))
        logs = []
        for rv, value in zip(self._released, values, strict=True):
            again = rv.owner.clone_with_new_inputs([replaced.get(v, v) for v in rv.owner.inputs])
            own = again.outputs[rv.owner.outputs.index(rv)]
            logs.append(pm.logp(own, value).ravel().astype("float64"))
        if self.is_drawn:
            batch = {v: _many(v) for v in fresh}
            logs, fresh = vectorize_graph(logs, batch), list(batch.values())
        return plain_function([*fresh, *values], logs)

    def inputs_of(self, point, drawn):
        """Return what the laws of all releases take, for many values of what is drawn."""
        count = len(drawn[0])
        return self._of_drawn(*(np.broadcast_to(v, (count, *np.shape(v))) for v in point), *drawn)

    def observed(self) -> list[np.ndarray]:
        """Return the published values."""
        return self._observed()

    def logs(self, inputs: Sequence[np.ndarray], value: Sequence[np.ndarray]) -> np.ndarray:
        """Return the log densities of all entries, a row for each draw of the inputs."""
        with np.errstate(all="ignore"):
            return np.concatenate(self._logs(*inputs, *value), axis=-1)

    def log_density(
        self, point, values, rng, seconds: float, expected: float | None = None
    ) -> tuple[float, float]:
        """Return the log of the mean density of values, and its standard error.

        All the time is taken where the mean differs from what is `expected`.
        """
        given = [[*point, *(value[k] for k in self._known)] for value in values]
        if not self.is_drawn:
            try:
                pairs = zip(given, values, strict=True)
                exact = [self.logs(self._fixed(*at), value).sum() for at, value in pairs]
            except ParameterValueError:
                return -np.inf, 0.0
            return float(logsumexp(exact) - np.log(len(exact))), 0.0
        if not self._parts:
            self._parts = self._find_parts(given[0], values[0], rng)
        began, size, count = time.perf_counter(), self._most(_FIRST), 0
        blocks = np.full((_BLOCKS, len(values), len(self._parts)), -np.inf)
        largest, order = blocks[0].copy(), np.concatenate(self._parts)
        starts = np.cumsum([0, *map(len, self._parts[:-1])])
        while True:
            round_began = time.perf_counter()
            for k, value in enumerate(values):
                if not k or self._known:
                    batch, _ = self._draw(rng, given[k], _BLOCKS * size)
                logs = np.nan_to_num(self.logs(batch, value), nan=-np.inf)
                sums = np.add.reduceat(logs[:, order], starts, axis=1)
                own = sums.reshape(_BLOCKS, size, len(starts))
                largest[k] = np.maximum(largest[k], own.max(axis=(0, 1)))
                blocks[:, k] = np.logaddexp(blocks[:, k], logsumexp(own, axis=1))
            count += size
            found, error = _jackknife(blocks - np.log(count))
            # A draw that has much of a mean says that others may be missing.
            of_parts = logsumexp(blocks, axis=0)
            shares = np.exp(np.nan_to_num(largest - of_parts, nan=0.0)).max(axis=1)
            if not shares @ softmax(of_parts.sum(axis=1)) < _MOST:
                error = np.inf
            drawn = count * _BLOCKS
            error = np.hypot(error, 1.0 / drawn)  # what is rarer may not have been drawn
            if expected is not None and expected > found and len(values) == 1:
                mean = of_parts[0] - np.log(drawn)
                rare = self._peaks(batch, values[0], order, starts) - mean + np.log(3.0 / drawn)
                if expected <= found + np.logaddexp(0.0, rare).max():
                    error = np.inf  # a record that was not drawn may make the difference
            now = time.perf_counter()
            as_expected = expected is None or abs(found - expected) <= _SIGMAS * error + _ROUNDING
            enough = error < _PRECISE and drawn >= _LEAST and as_expected
            if enough or 2 * now - round_began - began > seconds:
                return found, float(error)
            size = self._most(2 * size)

    def _peaks(self, batch, value, order, starts) -> np.ndarray:
        """Return the log density of each part where the statistic is what was released."""
        at = [x[:1] for x in batch]
        for (statistic, *_), z in zip(self._tensors, value, strict=True):
            i = self._inputs.index(statistic)
            if at[i].shape[1:] == np.shape(z):
                at[i] = np.asarray(z, dtype=at[i].dtype)[None]
        logs = np.nan_to_num(self.logs(at, value), nan=-np.inf)
        return np.add.reduceat(logs[:, order], starts, axis=1)[0]

    def _most(self, size: int) -> int:
        """Return a number of draws of each block that memory has room for."""
        return max(1, min(size, _ENTRIES // (_BLOCKS * self._size)))

    def _find_parts(self, point, value, rng) -> list[np.ndarray]:
        """Return sets of entries that no record is common to, by changing one after the other."""
        inputs, drawn = self._draw(rng, point, _BLOCKS * self._most(_FIRST))
        widths = [v.shape[1] for v in self._logs(*inputs, *value)]
        first = [x[0] for x in drawn]
        units = [(i, unit) for i, x in enumerate(first) for unit in np.ndindex(x.shape)]
        alone = all(_independent(v, self._given) for v in self._drawn)
        if sum(widths) == 1 or not alone or len(units) > _UNITS:
            return [np.arange(sum(widths))]
        parts = list(np.eye(sum(widths), dtype=bool))
        others = min(len(drawn[0]), max(_OTHERS, _UNITS // len(units)))
        places = np.linspace(0, len(drawn[0]) - 1, others).astype(int)
        tried = [np.sort(x, axis=0)[places] for x in drawn]  # units are independent
        at_a_time = max(1, _ENTRIES // (others * self._size))
        for k in range(0, len(units), at_a_time):
            own = units[k : k + at_a_time]
            rows = [np.broadcast_to(v, (len(own), others, *v.shape)) for v in [*point, *first]]
            changed = [v.copy() for v in rows[len(point) :]]
            for j, (i, unit) in enumerate(own):
                changed[i][(j, slice(None), *unit)] = values = tried[i][(slice(None), *unit)]
                if values[0] == values[-1]:  # what depends on it is not known
                    return [np.arange(sum(widths))]
            rows[len(point) :] = changed
            made = self._of_drawn(*(v.reshape(-1, *v.shape[2:]) for v in rows))
            for used in self._used(made, widths, len(own)):
                together = [p for p in parts if (p & used).any()]
                if len(together) > 1:
                    parts = [p for p in parts if not (p & used).any()]
                    parts.append(np.any(together, axis=0))
        return [np.flatnonzero(p) for p in parts]

    def _used(self, made: Sequence[np.ndarray], widths: Sequence[int], units: int) -> np.ndarray:
        """Return which entries of the log densities vary with each unit, a row for each."""
        varies = {}
        for v, x in zip(self._inputs, made, strict=True):
            rows = x.reshape(units, -1, math.prod(x.shape[1:]))
            varies[v] = ((rows != rows[:, :1]) & (rows == rows)).any(axis=1)  # NaN is no change
        used = []
        for (statistic, *others), width in zip(self._tensors, widths, strict=True):
            own = varies[statistic]
            if own.shape[1] != width or any(varies[v].any() for v in others):
                own = np.any([varies[v].any(axis=1) for v in (statistic, *others)], axis=0)[:, None]
            used.append(np.broadcast_to(own, (units, width)))
        return np.concatenate(used, axis=1)


def _as_written(release: TensorVariable, model: pm.Model) -> TensorVariable:
    """Return the release around what the user wrote, of the variables of this model.

    Copies of a model keep the tag, whose variables are those of the first.
    """
    if not hasattr(release.tag, "dp_written"):
        return release
    written = release_rv(*release.tag.dp_written)
    others = {v: model[v.name] for v in ancestors([written]) if v.name in model.named_vars}
    [own] = graph_replace([written], others, strict=False)
    return own


def _plain(inputs, outputs, mode=PLAIN_MODE) -> Callable:
    return plain_function(inputs, outputs)


def _seed(generators, rng: np.random.Generator) -> None:
    for generator in generators:
        generator.set_value(np.random.default_rng(rng.integers(2**63)))


def _vectorized(inputs, outputs, compiled: Callable) -> Callable:
    """Return a function of many values of all inputs, along a first axis that outputs have, too."""
    own = [i for i, v in enumerate(inputs) if not isinstance(v, Constant)]

    def one_by_one(*rows):
        one = made[1] = made[1] or compiled([inputs[i] for i in own], outputs)
        with python_is_meant():
            found = [one(*row) for row in zip(*(rows[i] for i in own), strict=True)]
        return [
            np.stack(c) if len({*map(np.shape, c)}) == 1 else c for c in zip(*found, strict=True)
        ]

    made: list[Any] = [None, None]
    with suppress(NotImplementedError, ValueError):
        batch = {v: _many(v) for v in inputs}
        made[0] = compiled([*batch.values()], vectorize_graph(outputs, batch), mode=PLAIN_MODE)

    def of_many(*rows):
        if made[0] is not None:
            try:
                found = made[0](*rows)
            except ValueError:  # shapes that are not known before do not broadcast
                made[0] = None
        if made[0] is None:
            return one_by_one(*rows)
        return [
            x if x.ndim > v.type.ndim else np.broadcast_to(x, (len(rows[0]), *x.shape))
            for x, v in zip(found, outputs, strict=True)
        ]

    return of_many


def _many(v: TensorVariable) -> TensorVariable:
    """Return a variable like many of another, along a first axis."""
    return pt.TensorType(v.dtype, (None, *v.type.shape))()


def _found(model: pm.Model, names, points, rows, compared: str) -> Check:
    """Return what was found, with words."""
    table = pd.DataFrame(rows, columns=["log_density", "monte_carlo", "difference", "error"])
    single = [(i, name) for i, name in enumerate(names) if not points[0][i].ndim]
    for place, (i, name) in enumerate(single):
        table.insert(place, name, [point[i].item() for point in points])
    table["compared"] = compared
    what = {
        "published": "of the published values",
        "simulated": f"of {_NEAR} releases simulated near the published one, together",
    }
    known, off = table["error"] < _TELLS, table["difference"].abs()
    lost = known & table["log_density"].isna()
    differs = known & (off > _SIGMAS * table["error"] + _ROUNDING) | lost
    if differs.any():
        excess = (off - _SIGMAS * table["error"]).where(differs, -np.inf).fillna(np.inf)
        worst = table.loc[excess.idxmax()]
        where = "".join(f", {name} = {worst[name]:.5g}" for _, name in single)
        of_user = [rv.name for rv in model.basic_RVs if isinstance(rv.owner.op, CustomDistRV)]
        instead = "Please report the model"
        if of_user:
            instead = (
                f"Do logp and random of {of_user[0]!r} contradict each other? {instead} if not"
            )
        text = (
            f"differs by {abs(worst['difference']):.2g} (error {worst['error']:.1g}) at point "
            f"{worst.name}{where}: the log density {what[compared]} is "
            f"{worst['log_density']:.6g}, and {worst['monte_carlo']:.6g} over records that were "
            f"drawn from the model as it is written; at {differs.sum()} of {len(table)} points. "
            f"{instead}"
        )
        return Check(False, table, text)
    if known.sum() <= len(table) / 2:
        text = (
            f"cannot tell: of the records that were drawn too few come near what was released at "
            f"{len(table) - known.sum()} of {len(table)} points, as the noise is narrow beside "
            f"their number. Check the model with wider noise of the same law, with fewer records, "
            f"or a single entry of the release"
        )
        return Check(None, table, text)
    within = (off + table["error"])[known].max()
    if within > _AGREES:
        text = f"cannot tell: agrees within {within:.1g} only. seconds=200, say, tells more"
        return Check(None, table, text)
    text = (
        f"agrees within {within:.1g} at {known.sum()} of {len(table)} "
        f"points: log densities {what[compared]}, beside the mean over records that were drawn"
    )
    return Check(True, table, text)


def _independent(rv: TensorVariable, given: Sequence[TensorVariable]) -> bool:
    """Whether the entries of a variable are independent, given these."""
    op = rv.owner.op
    if isinstance(op, MixtureRV):
        return all(_independent(v, given) for v in nearest_rvs(rv.owner.inputs) if v not in given)
    above = [v for v in ancestors(rv.owner.inputs, blockers=given) if is_random(v)]
    return isinstance(op, RandomVariable) and not op.ndim_supp and {*above} <= {*given}


def _jackknife(blocks: np.ndarray) -> tuple[float, float]:
    """Return the log of the mean over values of products over parts, and its standard error.

    `blocks` has log means, of shape (blocks, values, parts).
    """
    count, top = len(blocks), np.maximum(blocks.max(axis=0), -1e300)
    sums = np.exp(blocks - top)
    total = sums.sum(axis=0)
    with np.errstate(divide="ignore"):
        means = np.log(np.stack([total / count, *((total - sums) / (count - 1))])) + top
    found, *without = logsumexp(means.sum(axis=2), axis=1) - np.log(blocks.shape[1])
    if not np.isfinite([found, *without]).all():
        return found, np.inf
    return found, float(np.sqrt((count - 1) * np.mean((without - np.mean(without)) ** 2)))


def _points(model, density, names, observed, idata, count, rng) -> list[list[np.ndarray]]:
    """Return values of the parameters: draws of the posterior, or of the prior by their density."""
    variables = [model[name] for name in names]
    if idata is not None:
        has_draws = "posterior" in getattr(idata, "children", idata)
        posterior: Any = idata["posterior"] if has_draws else {}
        lacks = [name for name in names if name not in posterior]
        if lacks:
            raise ValueError(f"idata has no draws of {lacks[0]!r} in a group 'posterior'")
        values = needed_draws(posterior, variables)
        at = np.linspace(0, posterior.sizes["chain"] * posterior.sizes["draw"] - 1, count)
        return [[values[v][i] for v in variables] for i in np.unique(at.astype(int))]
    function, generators = compile_draws([], variables, mode=PLAIN_MODE)
    _seed(generators, rng)
    try:
        tried = [function() for _ in range(_TRIED)]
    except NotImplementedError as why:
        raise ValueError(
            f"{why}: points have to come from the posterior. Write dp.check(model, idata)"
        ) from None
    began, found = time.perf_counter(), []
    for point in tried:
        found.append(density.log_density(point, [observed], rng, 0.0)[0])
        if time.perf_counter() - began > _LOOK and len(found) >= count:
            break
    logs = np.nan_to_num(found, nan=-np.inf)
    top = logs.max() if logs.max() > -np.inf else 0.0
    order = np.argsort(-(np.maximum(logs - top, -_FAR) + rng.gumbel(size=logs.size)))
    near = [i for i in order if logs[i] > top - _FAR] or order.tolist()  # others tell little
    near = [*np.flatnonzero(np.isnan(found))[:1], *near]  # where there is no density
    distinct = {tuple(x.tobytes() for x in tried[i]): tried[i] for i in near}
    return list(distinct.values())[:count]
