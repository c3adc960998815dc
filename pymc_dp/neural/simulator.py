r"""What neural estimation needs of a model: a prior, a simulator, the noise, the release.

Parameters are handled as one flat vector :math:`\theta` of unconstrained values, through the
transforms of their variables: a density of :math:`\theta` cannot leave the prior's support.
"""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.utils import local_check_parameter_to_ninf_switch
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.pytensorf import compile as pm_compile
from pymc.pytensorf import reseed_rngs
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy import stats

from pymc_dp.graphs.draws import compile_draws, python_is_meant
from pymc_dp.graphs.questions import is_random, known_shape, known_value, nearest_rvs
from pymc_dp.mechanisms.base import Mechanism, check_attainable
from pymc_dp.neural.noise import Channel, check_statistic, spans
from pymc_dp.observation_checks import check_noise_shape
from pymc_dp.reading.model import (
    as_model,
    check_values,
    parents,
    release_mechanism,
    release_statistic,
    releases,
    without_starts,
)

_log = logging.getLogger("pymc.dp")

# A p-value far below what comes by chance, for thousands of statistics.
_UNLIKE = 1e-6

Simulator = Callable[[dict[str, np.ndarray], np.random.Generator], np.ndarray]


class Prior:
    """Prior of a model's parameters, over the flat vector of their unconstrained values.

    Parameters
    ----------
    model : pm.Model
        A model of the parameters only.

    Attributes
    ----------
    names : list of str
        The parameters.
    width : int
        Length of the vector.
    theta, of_theta : TensorVariable, list of TensorVariable
        The vector as a symbol, and the parameters as expressions of it.
    """

    def __init__(self, model: pm.Model):
        self.model = model
        self.names = [rv.name for rv in model.free_RVs]
        if not self.names:
            raise ValueError("there are no parameters to infer: the prior has no free variables")
        for rv in model.free_RVs:
            if rv.dtype.startswith(("int", "uint", "bool")):
                raise ValueError(
                    f"the parameter {rv.name!r} is discrete, and the networks have densities: "
                    f"name the continuous parameters in var_names=, and it is simulated with the "
                    f"data"
                )
        values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        start = model.initial_point(0)
        shapes = [np.shape(start[v.name]) for v in values]
        ends = np.cumsum([0, *(np.prod(shape, dtype=int) for shape in shapes)])
        self.width = int(ends[-1])
        self.theta = pt.vector("theta", shape=(self.width,), dtype="float64")
        by_value = {
            v: self.theta[a:b].reshape(shape)
            for v, a, b, shape in zip(values, ends[:-1], ends[1:], shapes, strict=True)
        }
        natural = model.replace_rvs_by_values(list(model.free_RVs))
        graphs = graph_replace([model.logp(), *natural], by_value, strict=False)
        self.of_theta = graphs[1:]
        batch = pt.matrix("thetas", shape=(None, self.width), dtype="float64")
        # A check of a batch would be a single one, and a row that fails it would fail them all.
        fgraph = FunctionGraph(outputs=graphs, clone=True, copy_inputs=False)
        dfs_rewriter(local_check_parameter_to_ninf_switch).rewrite(fgraph)
        logp, *natural = vectorize_graph(fgraph.outputs, {self.theta: batch})
        self._logp = pm_compile([batch], logp, on_unused_input="ignore")
        self._natural = pm_compile([batch], natural, on_unused_input="ignore")

    @property
    def deterministics(self) -> list[TensorVariable]:
        """What the model computes from the parameters."""
        free = set(self.model.free_RVs)
        return [d for d in self.model.deterministics if set(nearest_rvs([d])) <= free]

    @property
    def untransformed(self) -> list[str]:
        """The parameters without a transform: a network's draws may leave their support."""
        transforms = self.model.rvs_to_transforms
        return [rv.name for rv in self.model.free_RVs if transforms[rv] is None]

    def _parts(self, model: pm.Model) -> list[TensorVariable]:
        return [
            rv if t is None else t.forward(rv, *rv.owner.inputs)
            for rv in map(model.__getitem__, self.names)  # a copy has another order
            for t in [model.rvs_to_transforms[rv]]
        ]

    def flat(self, model: pm.Model | None = None) -> TensorVariable:
        """Return the vector as an expression of the variables of the model, or of a copy."""
        return pt.concatenate([part.ravel() for part in self._parts(model or self.model)])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""
        return {k: v.shape for k, v in self.natural(np.zeros(self.width)).items()}

    def place(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the unconstrained vector of given values of all parameters; (width,)."""
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ValueError(f"a value of {missing[0]!r} is needed, besides those of the others")
        shapes = self.shapes
        at = {
            rv: pt.as_tensor(
                np.broadcast_to(np.asarray(values[rv.name], rv.dtype), shapes[rv.name])
            )
            for rv in self.model.free_RVs
        }
        found = graph_replace(self.flat(), at, strict=False).eval()
        if not np.isfinite(self.logp(found[None])[0]):
            raise ValueError(
                f"the values {dict(values)} have no prior density: write values of "
                f"{', '.join(map(repr, self.names))} within the support of their priors"
            )
        return found

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior; returns (count, width)."""
        try:
            with python_is_meant():
                drawn = pm.draw(self._parts(self.model), draws=count, random_seed=rng)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"the prior cannot be drawn from, and simulations start there: give "
                f"{', '.join(map(repr, self.names))} proper priors ({error})"
            ) from None
        for rv, part in zip(self.model.free_RVs, drawn, strict=True):
            if not np.all(np.isfinite(part)):
                raise ValueError(self._why_not_finite(rv, part))
        return np.concatenate([np.reshape(part, (count, -1)) for part in drawn], axis=1)

    def _why_not_finite(self, rv: TensorVariable, part: np.ndarray) -> str:
        wrong = np.sum(~np.all(np.isfinite(np.reshape(part, (len(part), -1))), axis=1))
        transform = type(self.model.rvs_to_transforms[rv]).__name__
        return (
            f"the prior of {rv.name!r}: {wrong} of {len(part)} draws have no finite value on the "
            f"unconstrained scale (transform: {transform}). A draw is on the border of the "
            f"support, to the precision of numbers: use a prior with less mass there; or the "
            f"transform states what draws of the prior do not obey, as `ordered` does: remove it, "
            f"and write parameters that are ordered by themselves, such as "
            f"pt.cumsum of positive steps"
        )

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log density of the unconstrained vectors, Jacobian included; (count,)."""
        found = np.broadcast_to(self._logp(np.asarray(theta, "float64")), len(theta))
        return np.where(np.isnan(found), -np.inf, found)

    def natural(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters by name, (..., *shape), of unconstrained vectors (..., width)."""
        found = self._natural(np.asarray(theta, "float64").reshape(-1, self.width))
        shape = np.shape(theta)[:-1]
        return {n: v.reshape(shape + v.shape[1:]) for n, v in zip(self.names, found, strict=True)}


@dataclass(frozen=True)
class Problem:
    """A prior, a simulator of confidential statistics, and what was released of them.

    Attributes
    ----------
    prior : Prior
    model : pm.Model
        Model that names dimensions and coordinates.
    channels : tuple of Channel
    observed : ndarray
        The releases, flattened and joined.
    run : callable
        ``(theta, rng) -> statistics`` of shape (count, size), not validated.
    """

    prior: Prior
    model: pm.Model
    channels: tuple[Channel, ...]
    observed: np.ndarray
    run: Callable[[np.ndarray, np.random.Generator], np.ndarray]

    def simulate(self, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate one confidential statistic for each parameter vector; (count, size)."""
        names = ", ".join(repr(c.name) for c in self.channels)
        found = self.run(theta, rng)
        try:
            found = np.asarray(found, "float64")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the simulator must return an array of numbers, the statistics of {names}; "
                f"got {found!r} ({error})"
            ) from None
        size = len(self.observed)
        if found.shape != (len(theta), size):
            raise ValueError(
                f"the simulator returned an array of shape {found.shape} for {len(theta)} sets of "
                f"parameters; it must be ({len(theta)}, {size}), a row of statistics for each set: "
                f"the number of released values in {names} is {size}"
            )
        wrong = ~np.all(np.isfinite(found), axis=1)
        if wrong.any():
            bad = {k: v[wrong][0].tolist() for k, v in self.prior.natural(theta).items()}
            raise ValueError(
                f"the statistic of {names} is not finite in {wrong.sum()} of {len(theta)} "
                f"simulations, first at {bad}: a release needs a number there, or a prior that "
                f"leaves these parameters out"
            )
        for channel, place in spans(self.channels):
            check_statistic(channel, found[:, place])
        return found

    def check_seeded(self, theta: np.ndarray, seed: int) -> None:
        """Refuse a simulator that gives other values for the same seed."""

        def state():
            return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002

        before = state()
        first, second = (self.simulate(theta, np.random.default_rng(seed)) for _ in range(2))
        if not np.array_equal(first, second) or state() != before:
            raise ValueError(
                "the simulator depends on unseeded state: two calls with the same parameters and "
                "the same seed gave different values, or drew from np.random or random. Draw all "
                "random numbers from the generator that it is given (rng)"
            )
        if np.array_equal(first, self.simulate(theta, np.random.default_rng(seed + 1))):
            _log.info(
                "The simulator gave the same statistics with two seeds: if there is chance in it, "
                "draw from the generator that it is given (rng)"
            )

    def check_same(self, theta: np.ndarray, statistic: np.ndarray, rng: np.random.Generator):
        """Refuse earlier simulations that are unlike those that this problem makes."""
        again = self.simulate(theta, rng), self.simulate(theta, rng)
        for channel, place in spans(self.channels):
            columns = zip(*(a[:, place].T for a in (statistic, *again)), strict=True)
            if any(_unlike(*three) < _UNLIKE for three in columns):
                raise ValueError(
                    f"earlier: at the parameters of its simulations, the statistic of "
                    f"{channel.name!r} is not distributed as it was then: leave earlier= out, or "
                    f"use the simulator and the statistic of that result"
                )


def _unlike(known: np.ndarray, one: np.ndarray, two: np.ndarray) -> float:
    """Return the least p-value of tests of whether three columns are exchangeable, row by row."""
    found = [stats.ks_2samp(known, one).pvalue]
    moved = ~np.isclose(known, one, rtol=1e-9, atol=0)
    # Fewer than 20 cannot make it that small.
    if moved.sum() >= 20:
        away = (known - one)[moved]
        for difference in (away, np.abs(away) - np.abs(two - one)[moved]):  # of place, of spread
            found.append(stats.wilcoxon(difference, method="asymptotic").pvalue)
    return min(found)


def confidential(model: pm.Model) -> list[TensorVariable]:
    """Return the variables taken for confidential data, in model order.

    They are the free variables that a release's statistic uses directly, if another free variable
    is a parent of theirs, and of those without such a parent the ones with as many rows: the
    covariates of a regression, say. All other free ancestors of a release are parameters.
    """
    used = nearest_rvs([release_statistic(r) for r in releases(model)])
    used = [rv for rv in model.free_RVs if rv in used]
    data = [rv for rv in used if any(p in model.free_RVs for p in parents(rv))]
    rows = {known_shape(rv)[0] for rv in data if rv.type.ndim}
    return [rv for rv in used if rv in data or (rv.type.ndim and known_shape(rv)[0] in rows)]


def parameters(model: pm.Model, var_names: Sequence[str] | None = None) -> list[TensorVariable]:
    """Return the parameters of a model, in model order; see `confidential`.

    Parameters
    ----------
    var_names : sequence of str, optional
        The parameters by name. The other variables are simulated anew for each simulation.
    """
    statistics = [release_statistic(r) for r in releases(model)]
    above = set(ancestors(statistics))
    if isinstance(var_names, str):
        raise ValueError(f"var_names={var_names!r}: write a list of names, [{var_names!r}]")
    if var_names is None:
        data = confidential(model)
        chosen = [rv for rv in model.free_RVs if rv in above and rv not in data]
        for rv in chosen:
            mixed = [d.name for d in data if d in ancestors([rv])]
            if mixed:
                raise ValueError(
                    f"{rv.name!r} would be a parameter, but it depends on {mixed[0]!r}, which "
                    f"looks like confidential data: name the parameters in var_names="
                )
    else:
        unknown = [n for n in var_names if n not in [rv.name for rv in model.free_RVs]]
        if unknown:
            raise ValueError(
                f"var_names: {unknown[0]!r} is no free variable of the model; it has "
                f"{', '.join(repr(rv.name) for rv in model.free_RVs)}"
            )
        chosen = [rv for rv in model.free_RVs if rv.name in var_names]
        for rv in chosen:
            if rv not in above:
                raise ValueError(f"var_names: no release depends on {rv.name!r}")
            hidden = [p for p in parents(rv) if p in model.free_RVs and p not in chosen]
            if hidden:
                raise ValueError(
                    f"var_names: the prior of {rv.name!r} depends on {hidden[0].name!r}, whose "
                    f"density is then needed too: add {hidden[0].name!r}"
                )
    if not chosen:
        raise ValueError(
            "no parameters were found: every free variable that the releases depend on is used by "
            "a statistic directly; name the parameters in var_names="
        )
    return chosen


def model_problem(
    model: pm.Model | None, var_names: Sequence[str] | None = None, *, released: bool = True
) -> Problem:
    """Read a PyMC model with private releases, which need values if `released`; else NaN."""
    model = as_model(model, "model=...")
    check_values(model)
    found = releases(model)
    if not found:
        raise ValueError("there is no private release in the model: declare a PrivateObservation")
    others = [rv for rv in model.observed_RVs if rv not in found] + list(model.potentials)
    if others:
        raise NotImplementedError(
            f"{others[0].name!r}: neural estimation simulates the releases of a model and nothing "
            f"else; it takes no other observed variable, potential, or release of an X.dist(...)"
        )
    channels, observed = [], []
    for release in found:
        known = release in model.observed_RVs
        if released and not known:
            raise ValueError(
                f"the release {release.name!r} has no observed value: write observed=, or "
                f"pm.observe(model, {{{release.name!r}: ...}})"
            )
        if release.owner.op.bounds is not None:
            raise NotImplementedError(
                f"{release.name!r}: bounds= confines the parameters and the records, and a "
                f"simulator does not know it: write it as a prior, or leave it out"
            )
        if known:
            value = known_value(model.rvs_to_values[release])
        else:
            value = np.full(release.shape.eval(), np.nan)
        if value is None:
            raise ValueError(f"the observed value of {release.name!r} is symbolic: give numbers")
        channels.append(Channel(release.name, release_mechanism(release), np.shape(value)))
        observed.append(np.ravel(value).astype("float64"))
    chosen = parameters(model, var_names)
    others = [rv.name for rv in model.free_RVs if rv not in (*chosen, *found)]
    _log.info(
        "Parameters: %s; simulated with the data: %s (var_names= names other parameters)",
        ", ".join(rv.name for rv in chosen), ", ".join(others) or "nothing",
    )  # fmt: skip
    prior = Prior(_prior_model(model, chosen))
    statistics = [release_statistic(r).ravel() for r in found]
    run = _compiled_simulator(model, prior, statistics)
    return Problem(prior, model, tuple(channels), np.concatenate(observed), run)


def function_problem(
    simulator: Simulator,
    prior: pm.Model | Mapping[str, TensorVariable],
    mechanism: Mechanism,
    observed: Any,
    shape: int | Sequence[int] | None = None,
) -> Problem:
    """Join a vectorised simulator, a prior and a mechanism.

    Parameters
    ----------
    simulator : callable
        ``(parameters, rng) -> statistics``: a dict of arrays of shapes (count, ...), and the
        statistics in an array of shape (count, *observed.shape), for any count.
    prior : pm.Model or dict of str to X.dist(...)
    mechanism : Mechanism
    observed : array_like
        What was released.
    shape : int or sequence of int, optional
        In the place of `observed`, whose values then are NaN.
    """
    if not callable(simulator):
        raise TypeError(f"simulator: a function (parameters, rng) -> statistics, not {simulator!r}")
    if not isinstance(prior, pm.Model):
        distributions = prior
        wrong = not isinstance(prior, Mapping) or not all(
            isinstance(rv, TensorVariable) and is_random(rv) for rv in prior.values()
        )
        if wrong:
            raise TypeError(
                f"prior: a pm.Model, or a dict such as {{'mu': pm.Normal.dist(0, 1)}}, not "
                f"{prior!r}"
            )
        with pm.Model(model=None) as prior:  # no part of the model of the context
            for name, rv in distributions.items():
                prior.register_rv(rv, name)
    if prior.observed_RVs or prior.potentials:
        raise ValueError("prior: a model of the parameters only is needed, with nothing observed")
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism: a mechanism such as dp.LaplaceMechanism(1.0), not {mechanism!r}"
        )
    if shape is not None:
        value = np.full(shape, np.nan)
    else:
        try:
            value = np.asarray(observed, "float64")
        except (TypeError, ValueError):
            raise TypeError(f"observed: a number or an array of them, not {observed!r}") from None
        if not np.all(np.isfinite(value)):
            raise ValueError(f"observed: {value} is not finite")
    check_noise_shape("release", pt.zeros(value.shape), mechanism)
    if shape is None:
        wrong_parameter = mechanism.wrong_parameter()
        if wrong_parameter is not None:
            raise ValueError(f"mechanism: the noise parameter {wrong_parameter}")
        check_attainable("release", mechanism, value)
    known = Prior(prior)

    def run(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        given = known.natural(theta)
        try:
            found = simulator(given, rng)
        except Exception as error:
            shapes = ", ".join(f"{k!r} {v.shape}" for k, v in given.items())
            error.add_note(f"the simulator was called with a dict of arrays, {shapes}, and rng")
            raise
        try:
            statistic = np.asarray(found)
        except ValueError:  # rows of different lengths
            return found
        # Other shapes go back as they are, to be named in the error.
        fits = statistic.shape == (len(theta), *value.shape)
        return statistic.reshape(len(theta), -1) if fits else statistic

    return Problem(known, prior, (Channel("release", mechanism, value.shape),), value.ravel(), run)


def _prior_model(model: pm.Model, chosen: Sequence[TensorVariable]) -> pm.Model:
    """Copy a model without everything but some variables and what is computed from these."""
    kept = {rv.name for rv in chosen}
    for deterministic in model.deterministics:
        if set(nearest_rvs([deterministic])) <= set(chosen):
            kept.add(deterministic.name)
    fgraph, _ = fgraph_from_model(without_starts(model))
    for i in reversed(range(len(fgraph.outputs))):
        if fgraph.outputs[i].name not in kept:
            fgraph.remove_output(i)
    prior = model_from_fgraph(fgraph, mutate_fgraph=True)
    order = [rv.name for rv in model.unobserved_RVs]
    for variables in (prior.free_RVs, prior.deterministics):
        variables.sort(key=lambda v: order.index(v.name))
    return prior


def _compiled_simulator(
    model: pm.Model, prior: Prior, statistics: Sequence[TensorVariable]
) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """Compile the statistics given the parameters; everything else is drawn.

    One call is one simulation: a variable without random parents would otherwise be shared by the
    simulations of a batch, and a user's random function need not know about batches.
    """
    # The prior model holds copies of the parameters.
    by_rv = {model[name]: graph for name, graph in zip(prior.names, prior.of_theta, strict=True)}
    joined = pt.concatenate(statistics).astype("float64")
    function, generators = compile_draws([prior.theta], graph_replace(joined, by_rv, strict=False))

    def run(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        reseed_rngs(generators, rng.integers(2**30))
        return np.stack([function(row) for row in np.asarray(theta, "float64")])

    return run
