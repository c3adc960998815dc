"""How a study gets a replicate: simulators of releases, and samplers of posteriors.

A sampler that a compiled kernel covers wholly registers itself here, in a module of its own; PyMC
is then no part of a replicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import reseed_rngs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import compile_draws
from pymc_dp.graphs.questions import PLAIN_MODE, known_value, nearest_rvs
from pymc_dp.graphs.registry import Registry
from pymc_dp.laws.integrated import all_releases
from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.mechanisms.base import Mechanism, check_attainable
from pymc_dp.reading.model import (
    Reading,
    is_tagged,
    parents,
    privatized,
    release_statistic,
    releases,
)
from pymc_dp.sampling import sample

Released = dict[str, np.ndarray]

# They publish whatever number is finite.
_ANY_NUMBER = (LaplaceMechanism, GaussianMechanism)

# Draws until the bounds of a release are met.
_TRIES = 10_000


def observe(model: pm.Model, released: Released) -> pm.Model:
    """Give the releases their values."""
    return pm.observe(model, {k: v.astype(model[k].dtype) for k, v in released.items()})


class Simulator(Protocol):
    """Draws true values of the parameters, flat, and what is released of data that follow them."""

    shapes: dict[str, tuple[int, ...]]

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, Released]:
        """Simulate once."""


class Sampler(Protocol):
    """Draws from the posterior: (chains, draws, parameters)."""

    def __call__(self, released: Released, rng: np.random.Generator) -> np.ndarray:
        """Sample given a release."""


def parameters(model: pm.Model, var_names: Sequence[str] | None) -> list[str]:
    """Return the names of the variables that a study is about: no confidential values."""
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


def flat(values: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Join draws (chains, draws, ...) of several variables on the last axis."""
    parts = [values[name].reshape(*values[name].shape[:2], -1) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


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
        # A kernel simulates from its own parameters only.
        covered = kernel is not None and set(truth) <= {*kernel.needed}
        self._release = kernel.release if kernel is not None and covered else None
        found = [rv.name for rv in all_releases(model)]
        wanted = kernel.needed if kernel is not None and self._release is not None else found
        self._lock = Lock()
        fixed = _checked_truth(model, truth)
        self._names, self._wanted = names, wanted
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
            if self._release is not None:
                released = self._release(values, rng)
            else:
                released = {name: values[name] for name in self._wanted}
                if not all(np.all(np.isfinite(v)) for v in released.values()):
                    released = None
            if released is not None:
                return flat_truth(values, self._names), released
        raise ValueError(f"none of {_TRIES} releases is possible inside the bounds=")


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
    found = {}
    for name, value in truth.items():
        given = np.asarray(value, "float64")
        found[name] = np.broadcast_to(given, free[name].shape.eval()).astype(free[name].dtype)
        if not np.all(np.isfinite(given)) or not np.all(found[name] == given):
            raise ValueError(f"truth: {name!r} = {value} is no value of type {free[name].dtype}")
    at = {free[name]: pt.as_tensor(value) for name, value in found.items()}
    for name, value in found.items():
        try:
            density = pm.logp(free[name], value)
        except NotImplementedError:
            continue
        [density] = graph_replace([density], at, strict=False)
        known = known_value(density)
        if known is not None and np.any(known == -np.inf):
            raise ValueError(
                f"truth: {name!r} = {value} is outside of the support of its prior, and no "
                f"posterior will reach it"
            )
    return found


def _computed(
    model: pm.Model, truth: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return what the model computes from the true values."""
    fixed = pm.do(model, dict(truth)) if truth and names else model
    for name in names:
        if nearest_rvs([fixed[name]]):
            raise ValueError(f"simulate= needs the true value of {name!r} in truth=")
    return {name: fixed[name].eval() for name in names}


@dataclass(frozen=True)
class _Given:
    """What a release from a function of the user's must be."""

    shape: tuple[int, ...]
    dtype: str
    mechanism: Mechanism
    attainable: Callable[[np.ndarray], Any] | None

    @classmethod
    def read(cls, rv: TensorVariable) -> _Given:
        """Read a release, and prepare what is checked for every replicate."""
        mechanism, shape = rv.owner.op.mechanism, tuple(rv.shape.eval().tolist())
        check = None
        if not isinstance(mechanism, _ANY_NUMBER):
            value = pt.tensor("value", dtype="float64", shape=shape)
            attainable = pt.all(mechanism.attainable(value))
            check = pytensor.function([value], attainable, mode=PLAIN_MODE)
        return cls(shape, rv.dtype, mechanism, check)

    def checked(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a value in the release's type, or say why it cannot be one."""
        if value.shape != self.shape:
            raise ValueError(
                f"simulate= returned {name!r} of shape {value.shape}; the release has {self.shape}"
            )
        if not np.isfinite(value).all():
            raise ValueError(f"simulate= returned {name!r} = {value}, not all finite")
        if self.attainable is not None and not self.attainable(value):
            check_attainable(name, self.mechanism, value)
        return value.astype(self.dtype)


class GivenSimulator:
    """Releases from a function of the user's, of data that need not follow the model.

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
        found = _checked_truth(model, truth)
        found |= _computed(model, found, [name for name in names if name not in found])
        self.shapes = {name: found[name].shape for name in names}
        self._truth = flat_truth(found, names)
        self._releases = {rv.name: _Given.read(rv) for rv in all_releases(model)}
        self._simulate, self._cell = simulate, cell

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, Released]:
        """Simulate once."""
        found = self._simulate(dict(self._cell), rng)
        if not isinstance(found, Mapping):
            [name, *others] = self._releases
            if others:
                raise TypeError("simulate= must return a dict of the releases by name")
            found = {name: found}
        released = {}
        for name, given in self._releases.items():
            if name not in found:
                raise ValueError(f"simulate= returned no {name!r}")
            released[name] = given.checked(name, np.asarray(found[name], "float64"))
        return self._truth, released


# PyMC does not promise that several threads may sample.
_one_at_a_time = Lock()


class ModelSampler:
    """`dp.sample` of the model with the release observed."""

    def __init__(self, model: pm.Model, names: Sequence[str], **kwargs: Any):
        self._model, self._names, self._kwargs = model, names, kwargs

    def __call__(self, released: Released, rng: np.random.Generator) -> np.ndarray:
        """Sample given a release."""
        model = observe(self._model, released)
        with _one_at_a_time:
            return self._sampled(model, rng)

    def _sampled(self, model: pm.Model, rng: np.random.Generator) -> np.ndarray:
        tree = sample(
            model,
            random_seed=int(rng.integers(2**31)),
            **{"cores": 1, "progressbar": False, "compute_convergence_checks": False}
            | self._kwargs,
        )
        return flat({n: tree["posterior"][n].to_numpy() for n in self._names}, self._names)


@dataclass(frozen=True)
class Compiled:
    """What a kernel that covers a whole model gives a study.

    Attributes
    ----------
    names : tuple of str
        The variables that it draws.
    sampler : callable
        ``(names, draws=, tune=, chains=, thin=, enough=)`` to a `Sampler`; see `ChainSampler`.
    rate : float
        Effective draws a second to be expected, as `dp.sample` compares its routes by.
    needed : tuple of str
        The variables that `release` needs.
    release : callable, optional
        ``(values, rng)`` to a release of data that follow the model at these values, None where
        bounds= exclude it.
    """

    names: tuple[str, ...]
    sampler: Callable[..., Sampler]
    rate: float = np.inf
    needed: tuple[str, ...] = ()
    release: Callable[[dict[str, Any], np.random.Generator], Released | None] | None = None


Reader = Callable[[pm.Model], Compiled]
COMPILED: Registry[Reader, Reader] = Registry()
"""Readers of kernels; one raises NotImplementedError or ValueError with what it does not cover."""


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


def anything_released(model: pm.Model) -> Released:
    """Return zeros in the place of what will be released."""
    return {rv.name: np.zeros(rv.shape.eval(), rv.dtype) for rv in all_releases(model)}


class ChainSampler:
    """Chains of a compiled kernel, without PyMC.

    Parameters
    ----------
    chain : compiled chain
        With ``given(released)``, ``begin(rng, tune, thin)`` and ``advance(rng, state, draws,
        thin)``, as `fused.GaussianChain`.
    values : callable
        ``(rows, rng)`` to draws by name.
    names : sequence of str
    draws, tune, chains : int
    thin : int, optional
        Sweeps to a draw; the kernel's own default if None.
    enough : callable, optional
        Whether draws so far, (chains, draws, parameters), are enough.
    """

    def __init__(
        self,
        chain: Any,
        values: Callable[[np.ndarray, np.random.Generator], dict[str, np.ndarray]],
        names: Sequence[str],
        *,
        draws: int,
        tune: int,
        chains: int,
        thin: int | None,
        enough: Callable[[np.ndarray], bool] | None,
    ):
        self._chain, self._values, self._names = chain, values, names
        self._draws, self._tune, self._chains = draws, tune, chains
        self._thin = {} if thin is None else {"thin": thin}
        self._enough = enough

    def __call__(self, released: Released, rng: np.random.Generator) -> np.ndarray:
        """Sample given a release."""
        chain = self._chain.given(released)
        states = [chain.begin(rng, self._tune, **self._thin) for _ in range(self._chains)]
        parts: list[np.ndarray] = []
        done = 0
        while done < self._draws:
            # Each part is as long as all before it.
            more = self._draws if self._enough is None else max(done, self._draws // 16, 50)
            more = min(more, self._draws - done)
            outs = []
            for c, state in enumerate(states):
                states[c], out = chain.advance(rng, state, more, **self._thin)
                outs.append(out)
            rows = np.stack(outs) if len(outs) > 1 else outs[0][None]
            parts.append(flat(self._values(rows, rng), self._names))
            done += more
            if self._enough is not None and self._enough(np.concatenate(parts, axis=1)):
                break
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
