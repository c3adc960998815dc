"""Problems of neural estimation: of a PyMC model, or of the user's simulator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import compile_draws
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import is_random, known_value, nearest_rvs
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.checks import check_attainable
from pymc_dp.neural.noise import Channel
from pymc_dp.neural.prior import Prior
from pymc_dp.neural.problem import Problem
from pymc_dp.observation_checks import check_noise_shape
from pymc_dp.reading.checks import check_values
from pymc_dp.reading.frozen import as_model, without_starts
from pymc_dp.reading.model import mechanism_of, parents, release_statistic, releases

_log = logging.getLogger("pymc.dp")

Simulator = Callable[[dict[str, np.ndarray], np.random.Generator], np.ndarray]


def confidential(model: pm.Model) -> list[TensorVariable]:
    """Return the variables taken for confidential data, in model order.

    They are the free variables that a release's statistic uses directly and that have another free
    variable as a parent. Variables without such a parent, but with as many rows, are confidential
    too: the covariates of a regression, say. All other free ancestors of a release are parameters.
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
    """Read a PyMC model with private releases; without `released`, missing values are NaN."""
    model = as_model(model, "model=...")
    check_values(model)
    release_rvs = releases(model)
    if not release_rvs:
        raise ValueError("there is no private release in the model: declare a PrivateObservation")
    unread = [rv for rv in model.observed_RVs if rv not in release_rvs] + list(model.potentials)
    if unread:
        raise NotImplementedError(
            f"{unread[0].name!r}: neural estimation simulates the releases of a model and nothing "
            f"else; it takes no other observed variable, potential, or release of an X.dist(...)"
        )
    channels, observed = [], []
    for release in release_rvs:
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
        channels.append(Channel(release.name, mechanism_of(release), np.shape(value)))
        observed.append(np.ravel(value).astype("float64"))
    chosen = parameters(model, var_names)
    simulated = [rv.name for rv in model.free_RVs if rv not in (*chosen, *release_rvs)]
    _log.info(
        "Parameters: %s; simulated with the data: %s (var_names= names other parameters)",
        ", ".join(rv.name for rv in chosen), ", ".join(simulated) or "nothing",
    )  # fmt: skip
    prior = Prior(_prior_model(model, chosen))
    statistics = [release_statistic(r).ravel() for r in release_rvs]
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
        with pm.Model(model=None) as prior:  # not nested in the model of the context
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
        arguments = known.natural(theta)
        try:
            returned = simulator(arguments, rng)
        except Exception as error:
            shapes = ", ".join(f"{k!r} {v.shape}" for k, v in arguments.items())
            error.add_note(f"the simulator was called with a dict of arrays, {shapes}, and rng")
            raise
        try:
            statistic = np.asarray(returned)
        except ValueError:  # rows of different lengths
            return returned
        # Other shapes are returned unchanged: `Problem.simulate` names them in its error.
        fits = statistic.shape == (len(theta), *value.shape)
        return statistic.reshape(len(theta), -1) if fits else statistic

    return Problem(known, prior, (Channel("release", mechanism, value.shape),), value.ravel(), run)


def _prior_model(model: pm.Model, chosen: Sequence[TensorVariable]) -> pm.Model:
    """Copy the chosen variables of a model, and the deterministics computed from them."""
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
