"""How a study gets a replicate: simulators of releases, and samplers of posteriors.

A compiled kernel that samples a whole model registers itself here, in a module of its own; its
replicates run without PyMC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import reseed_rngs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import compile_draws
from pymc_dp.graphs.values import PLAIN_MODE, known_value, nearest_rvs
from pymc_dp.laws.integrated import all_releases
from pymc_dp.mechanisms.base import Mechanism, has_continuous_rates
from pymc_dp.mechanisms.checks import check_attainable, is_published
from pymc_dp.reading.model import (
    Reading,
    mechanism_of,
    parents,
    privatized,
    release_statistic,
    releases,
)
from pymc_dp.reading.tags import is_tagged
from pymc_dp.sampling import sample
from pymc_dp.studies.settings import Settings

Released = dict[str, np.ndarray]
# Draws from the posterior given a release: (chains, draws, parameters).
Sampler = Callable[[Released, np.random.Generator], np.ndarray]
# Releases of data that follow the model at some values, None where bounds= exclude them.
Release = Callable[[dict[str, Any], np.random.Generator], Released | None]

# Draws until the bounds of a release are met.
_TRIES = 10_000


def anything_released(model: pm.Model) -> Released:
    """Return placeholders of the releases: zeros, and NaN where zeros would be withheld."""
    values = {}
    for rv in all_releases(model):
        value, mechanism = np.zeros(rv.shape.eval(), rv.dtype), mechanism_of(rv)
        if mechanism.withholds:
            value[~np.broadcast_to(mechanism.attainable(value).eval(), value.shape)] = np.nan
        values[rv.name] = value
    return values


def with_anything_released(model: pm.Model) -> Reading:
    """Read a model before its releases have values."""
    anything = anything_released(model)
    return Reading(pm.observe(model, {name: pt.constant(v) for name, v in anything.items()}))


def parameters(model: pm.Model, var_names: Sequence[str] | None) -> list[str]:
    """Return the names of the parameters: free variables that are not confidential."""
    if var_names is None:
        used = nearest_rvs([release_statistic(r) for r in releases(model)])
        confidential = [rv for rv in used if any(p in model.free_RVs for p in parents(rv))]
        hidden = {*all_releases(model), *privatized(Reading(model)), *confidential}
        names = [rv.name for rv in model.free_RVs if rv not in hidden and not is_tagged(rv)]
        if not names:
            raise ValueError("the model has no parameters: name variables in var_names=")
        return names
    released = all_releases(model)
    known = [v.name for v in (*model.free_RVs, *model.deterministics) if v not in released]
    unknown = [name for name in var_names if name not in known]
    if unknown:
        raise ValueError(f"var_names: the model has no {unknown[0]!r}, but {', '.join(known)}")
    return list(var_names)


def flat(values: Mapping[Any, Any], names: Sequence[str]) -> np.ndarray:
    """Join draws (chains, draws, ...) of several variables on the last axis."""
    arrays = [np.asarray(values[name]) for name in names]
    return np.concatenate([a.reshape(*a.shape[:2], -1) for a in arrays], axis=2)


class ModelSimulator:
    """Draws from a model, its parameters fixed or drawn from their priors.

    Parameters
    ----------
    model : pm.Model
        With free releases.
    names : sequence of str
        The parameters that are returned.
    truth : mapping
        Values of variables; the others are drawn.
    kernel : Compiled, optional
        Draws the releases, if it can.
    """

    def __init__(
        self,
        model: pm.Model,
        names: Sequence[str],
        truth: Mapping[str, Any],
        kernel: Compiled | None = None,
    ):
        mechanisms = {rv.name: mechanism_of(rv) for rv in all_releases(model)}
        wanted: tuple[str, ...] = tuple(mechanisms)
        self._release: Release = partial(_possible, mechanisms)
        # A kernel simulates from its own parameters only.
        if kernel is not None and kernel.release is not None and set(truth) <= {*kernel.needed}:
            wanted, self._release = kernel.needed, kernel.release
        self._lock = Lock()
        fixed = _checked_truth(model, truth)
        self._names = names
        self._known = {n: fixed[n] for n in (*names, *wanted) if n in fixed}
        self._drawn = [n for n in dict.fromkeys((*names, *wanted)) if n not in fixed]
        self._function: Callable[..., Any] | None = None
        self._generators: list[SharedVariable] = []
        if self._drawn:
            fixed_model = pm.do(model, fixed) if fixed else model
            drawn = [fixed_model[name] for name in self._drawn]
            self._function, self._generators = compile_draws([], drawn)
        try:
            values = self._values()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"the model cannot be drawn from ({error}): give every parameter a proper prior, "
                f"or its value in truth="
            ) from None
        self.shapes = {n: np.shape(values[n]) for n in names}

    def _values(self) -> dict[str, np.ndarray]:
        if self._function is None:
            return self._known
        return self._known | dict(zip(self._drawn, self._function(), strict=True))

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, Released]:
        """Simulate once; a release that its bounds= exclude (NaN) is drawn again, with the data."""
        if self._function is None:
            return self._draw(rng)
        with self._lock:  # a backend may run several threads
            reseed_rngs(self._generators, int(rng.integers(2**63)))
            return self._draw(rng)

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Released]:
        for _ in range(_TRIES):
            values = self._values()
            released = self._release(values, rng)
            if released is not None:
                return flat_truth(values, self._names), released
        raise ValueError(f"none of {_TRIES} releases is possible inside the bounds=")


def _possible(
    mechanisms: Mapping[str, Mechanism], values: Mapping[str, Any], _: np.random.Generator
) -> Released | None:
    """Return the releases among the drawn values, None if bounds= exclude one."""
    released = {name: values[name] for name in mechanisms}
    possible = all(is_published(mechanisms[name], v).all() for name, v in released.items())
    return released if possible else None


def flat_truth(values: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Join values of several variables."""
    return np.concatenate([np.ravel(values[name]) for name in names]).astype("float64")


def _checked_truth(model: pm.Model, truth: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return true values of the variables' shapes and types, inside of the priors' support."""
    simulated = all_releases(model)
    free = {rv.name: rv for rv in model.free_RVs if rv not in simulated}
    for name in truth:
        if name not in free:
            raise ValueError(f"truth: the model has no free variable {name!r}, but {', '.join(free)}")  # fmt: skip  # noqa: E501
    checked = {}
    for name, value in truth.items():
        stated = np.asarray(value, "float64")
        checked[name] = np.broadcast_to(stated, free[name].shape.eval()).astype(free[name].dtype)
        if not np.all(np.isfinite(stated)) or not np.all(checked[name] == stated):
            raise ValueError(f"truth: {name!r} = {value} is no value of type {free[name].dtype}")
    by_rv = {free[name]: pt.as_tensor(value) for name, value in checked.items()}
    for name, value in checked.items():
        try:
            density = pm.logp(free[name], value)
        except NotImplementedError:
            continue
        [density] = graph_replace([density], by_rv, strict=False)
        known = known_value(density)
        if known is not None and np.any(known == -np.inf):
            raise ValueError(
                f"truth: {name!r} = {value} is outside of the support of its prior, and no "
                f"posterior will reach it"
            )
    return checked


def _computed(
    model: pm.Model, truth: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the deterministics that the true values determine."""
    fixed = pm.do(model, dict(truth)) if truth and names else model
    for name in names:
        if nearest_rvs([fixed[name]]):
            raise ValueError(f"simulate= needs the true value of {name!r} in truth=")
    return {name: fixed[name].eval() for name in names}


def _checked_release(rv: TensorVariable) -> Callable[[Any], np.ndarray]:
    """Return a function that gives a value the type of a release, or says why it cannot be one."""
    name, mechanism, shape = rv.name, mechanism_of(rv), tuple(rv.shape.eval().tolist())
    attainable = None  # every finite number is possible
    if not has_continuous_rates(mechanism):
        entry = pt.tensor("value", dtype="float64", shape=shape)
        attainable = pytensor.function(
            [entry], pt.all(mechanism.attainable(entry)), mode=PLAIN_MODE
        )

    def checked(simulated: Any) -> np.ndarray:
        value = np.asarray(simulated, "float64")
        if value.shape != shape:
            raise ValueError(
                f"simulate= returned {name!r} of shape {value.shape}; the release has {shape}"
            )
        if not is_published(mechanism, value).all():
            raise ValueError(f"simulate= returned {name!r} = {value}, not all finite")
        if attainable is not None and not attainable(value):
            check_attainable(name, mechanism, value)
        return value.astype(rv.dtype)

    return checked


class GivenSimulator:
    """Releases from a user's function, of data that need not follow the model.

    Parameters
    ----------
    simulate : callable
        ``(cell, rng) -> released``: a dict by release, or an array for a single release.
    """

    def __init__(
        self,
        model: pm.Model,
        names: Sequence[str],
        truth: Mapping[str, Any],
        simulate: Callable[[dict[str, Any], np.random.Generator], Any],
        cell: dict[str, Any],
    ):
        values = _checked_truth(model, truth)
        values |= _computed(model, values, [name for name in names if name not in values])
        self.shapes = {name: values[name].shape for name in names}
        self._truth = flat_truth(values, names)
        self._releases = {rv.name: _checked_release(rv) for rv in all_releases(model)}
        self._simulate, self._cell = simulate, cell

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, Released]:
        """Simulate once."""
        returned = self._simulate(dict(self._cell), rng)
        if not isinstance(returned, Mapping):
            [name, *further] = self._releases
            if further:
                raise TypeError("simulate= must return a dict of the releases by name")
            returned = {name: returned}
        released = {}
        for name, checked in self._releases.items():
            if name not in returned:
                raise ValueError(f"simulate= returned no {name!r}")
            released[name] = checked(returned[name])
        return self._truth, released


# PyMC does not promise that several threads may sample.
_one_at_a_time = Lock()


def model_sampler(model: pm.Model, names: Sequence[str], settings: Settings) -> Sampler:
    """Return `dp.sample` of the model with the release observed."""
    kwargs: dict[str, Any] = {"cores": 1, "progressbar": False}
    kwargs |= {"compute_convergence_checks": False} | settings.size | settings.sampler

    def draw(released: Released, rng: np.random.Generator) -> np.ndarray:
        # PyMC would impute NaN in an array, which is a withheld entry here.
        observed = {k: pt.constant(v.astype(model[k].dtype)) for k, v in released.items()}
        with _one_at_a_time:
            tree = sample(
                pm.observe(model, observed), random_seed=int(rng.integers(2**31)), **kwargs
            )
        return flat(tree["posterior"].to_dataset(), names)

    return draw


@dataclass(frozen=True)
class Compiled:
    """What a kernel that covers a whole model gives a study.

    Attributes
    ----------
    names : tuple of str
        The variables that it draws.
    sampler : callable
        ``(names, settings)`` to a `Sampler`.
    rate : float
        Effective draws a second to be expected, as `dp.sample` compares its routes by.
    needed : tuple of str
        The variables that `release` needs.
    release : callable, optional
        ``(values, rng)`` to the releases.
    """

    names: tuple[str, ...]
    sampler: Callable[[Sequence[str], Settings], Sampler]
    rate: float = np.inf
    needed: tuple[str, ...] = ()
    release: Release | None = None


Reader = Callable[[pm.Model], Compiled]
COMPILED: list[Reader] = []
"""Readers of kernels; a reader raises NotImplementedError or ValueError to decline a model."""


def compiled(model: pm.Model, names: Sequence[str]) -> Compiled:
    """Return the first kernel that covers a model and draws these variables; say why none does."""
    reasons = []
    for read in COMPILED:
        try:
            kernel = read(model)
            missing = [name for name in names if name not in kernel.names]
            if missing:
                raise NotImplementedError(f"the kernel does not draw {missing[0]!r}")
            return kernel
        except (NotImplementedError, ValueError) as error:
            reasons.append(str(error))
    reasons = list(dict.fromkeys(reasons))
    raise NotImplementedError("no compiled kernel covers the model: " + "; ".join(reasons))
