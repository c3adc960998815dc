"""The fused Gibbs route: whole chains in one compiled loop, without PyMC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.tensor.random.basic import ExponentialRV, GammaRV, HalfNormalRV, InvGammaRV, NormalRV
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.powers import power_law
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.kernels.moments.gaussian_chain import GaussianModel, run_sweeps
from pymc_dp.ladder.collapse import collapsible
from pymc_dp.laws.moments.one_column import OneColumn
from pymc_dp.mechanisms.base import has_kink
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.model import Reading, prior_number
from pymc_dp.reading.normal_column import NormalColumn
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, check_releases, run
from pymc_dp.step_methods.base import published_values

# Sweeps to a recorded draw: so many that draws are nearly independent, and that recording them
# takes a small part of the time.
SWEEPS = 10


def plan(reading: Reading) -> Plan:
    """Plan the route; decline with the part of the model that the kernel does not cover."""
    covered(reading)
    return Plan.costing({"fused Gibbs": 1}, partial(sample, reading))


@once
def covered(reading: Reading) -> NormalColumn:
    """Return the records; decline if the kernel does not cover the whole model."""
    laws, model = collapsible(reading), reading.model
    if len(laws) != 1:
        raise Declined("it covers one vector of records")
    [law] = laws
    if not isinstance(law, OneColumn):
        raise Declined("it covers one vector of Normal records of one mean and variance")
    group = law.column
    check_releases(model, [r.rv for r in group.releases])
    for which in ("mean", "variance"):
        if sum(bool(getattr(c, which)) for c in group.components) > 1:
            raise Declined(f"the {which} of {group.name!r} is released more than once")
    if group.n < 3 and any(
        c.variance and not has_kink(r.op.mechanism)
        for r in group.releases
        for c in r.mean_and_variance()
    ):
        raise Declined("a variance of n = 2 records under Gaussian noise")
    if any(bool(c.mean) == bool(c.variance) for c in group.components):
        raise Declined("an entry of a release is neither a mean nor a variance")
    mean = group.mean
    spread, power = _spread(group)
    extra = [rv.name for rv in model.free_RVs if rv not in (mean, spread, group.rv)]
    if extra:
        raise Declined(f"it does not cover the variable {extra[0]!r}")
    if (type(spread.owner.op), power) not in _SPREAD_PRIORS:
        known = ", ".join(
            f"{op.__name__.removesuffix('RV')} on the {'variance' if k == 1 else 'sd'}"
            for op, k in _SPREAD_PRIORS
        )
        raise Declined(f"the prior of {spread.name!r} is none of: {known}")
    if nearest_rvs(spread.owner.inputs):
        raise Declined(f"the prior of {spread.name!r} has random parameters")
    has_mean, has_variance = (
        group.uses(which) or group.bounds is not None for which in ("mean", "variance")
    )
    shape = _prior(spread, power)[0] + (has_mean + (group.n - 1) * has_variance) / 2
    if shape < 0 or (shape == 0 and group.bounds is None):
        raise Declined(f"there are too few records for the prior of {spread.name!r}")
    if mean.owner is None or not isinstance(mean.owner.op, NormalRV | FlatRV):
        raise Declined("the records' mean has no Normal or flat prior")
    if isinstance(mean.owner.op, NormalRV):
        location, sd = mean.owner.op.dist_params(mean.owner)
        if nearest_rvs([location]):
            raise Declined(f"the prior location of {mean.name!r} is random")
        sources = nearest_rvs([sd])
        scaling = power_law(sd**2, spread) if sources == [spread] else None
        if sources and (scaling is None or abs(scaling[1] - power) > 1e-9):
            raise Declined(
                f"the prior spread of {mean.name!r} is neither a number nor proportional to the "
                f"square root of {spread.name!r}"
            )
    if any(v.type.ndim for v in (mean, spread)):
        raise Declined("it covers scalar parameters")
    for parameter in (mean, spread):
        if parameter in model.free_RVs:
            check_transform(model, parameter)
    return group


# Priors of the spread by op and by the power k in variance = spread^k: a function of the op's
# parameters to (a0, b0, c0) of the density v^(-a0-1) exp(-b0/v - c0 v) that it gives the variance.
_SPREAD_PRIORS: dict[tuple[type, int], Callable[..., tuple[float, float, float]]] = {
    (InvGammaRV, 1): lambda alpha, beta: (alpha, beta, 0.0),
    (HalfFlatRV, 1): lambda: (-1.0, 0.0, 0.0),
    (HalfFlatRV, 2): lambda: (-0.5, 0.0, 0.0),
    (HalfNormalRV, 2): lambda loc, sigma: (-0.5, 0.0, 0.5 / sigma**2),
    (GammaRV, 1): lambda alpha, scale: (-alpha, 0.0, 1.0 / scale),
    (ExponentialRV, 1): lambda scale: (-1.0, 0.0, 1.0 / scale),
}


def _spread(group: NormalColumn) -> tuple[TensorVariable, int]:
    """Return the free variable behind the records' variance, and k in variance = spread^k."""
    spread, c, k = group.spread or (None, 0.0, 0.0)
    if spread is None or abs(c - 1) > 1e-9 or abs(k - round(k, 0)) > 1e-9:
        raise Declined(
            f"it covers {group.name!r} = Normal(mu, sigma) or Normal(mu, sqrt(sigma2)) with a free "
            f"sigma or sigma2"
        )
    return spread, round(k)


def _prior(spread: TensorVariable, power: int) -> tuple[float, float, float]:
    op = spread.owner.op
    return _SPREAD_PRIORS[type(op), power](
        *(prior_number(p, spread.name) for p in op.dist_params(spread.owner))
    )


def _place(component) -> tuple[str, float, float]:
    """Return the kernel's field that is (z - offset) / factor of a released z; offset; factor."""
    field, factor = ("z_mean", component.mean) if component.mean else ("z_var", component.variance)
    return field, component.constant, factor


def kernel_model(model: pm.Model, group: NormalColumn) -> GaussianModel:
    """Return the numbers that the kernel needs, with the present values of noise and releases."""
    mean = group.mean
    spread, power = _spread(group)
    a0, b0, c0 = _prior(spread, power)
    fields: dict[str, Any] = {
        "n": float(group.n),
        "mu0": 0.0,
        "kappa0": 0.0,
        "tau0": 0.0,
        "a0": a0,
        "b0": b0,
        "c0": c0,
        "bounded": group.bounds is not None,
        "lo": group.bounds[0] if group.bounds else 0.0,
        "hi": group.bounds[1] if group.bounds else 0.0,
    }
    if isinstance(mean.owner.op, NormalRV):
        location, sd = mean.owner.op.dist_params(mean.owner)
        fields["mu0"] = prior_number(location, mean.name)
        if nearest_rvs([sd]):
            factor, _ = power_law(sd**2, spread) or (np.nan, 0.0)  # `covered` checked it
            fields["kappa0"] = 1.0 / factor
        else:
            fields["tau0"] = prior_number(sd, mean.name) ** -2
    for which in ("mean", "var"):
        used = group.uses("mean" if which == "mean" else "variance")
        fields[f"has_{which}"] = float(used or group.bounds is not None)
        fields[f"lam_{which}"] = fields[f"tau_{which}"] = fields[f"z_{which}"] = 0.0
    for release in group.releases:
        entries = zip(
            *published_values(model, release.rv), release.mean_and_variance(), strict=True
        )
        for z, lam, tau, c in entries:
            field, offset, factor = _place(c)
            which = field.removeprefix("z_")
            fields[field] = float((z - offset) / factor)
            fields[f"lam_{which}"] = float(lam * abs(factor))
            fields[f"tau_{which}"] = float(tau * factor**2)
    return GaussianModel(**fields)


def start(kernel: GaussianModel, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Return a dispersed start within the bounds of the kernel's model."""
    jitter = rng.random()
    if kernel.bounded:
        width = kernel.hi - kernel.lo
        mean = kernel.lo + width * (0.3 + 0.4 * jitter)
        variance = 0.05 * width**2
        return mean, variance, mean, variance
    noise_var = (1.0 / kernel.lam_var if kernel.lam_var > 0 else 0.0) + (
        kernel.tau_var**-0.5 if kernel.tau_var > 0 else 0.0
    )
    if kernel.has_var:
        variance = max(kernel.z_var, 0.1 * noise_var, 1e-300) * (0.5 + jitter)
    else:
        variance = kernel.b0 / max(kernel.a0, 1.0) if kernel.b0 > 0 else 1.0
        variance = 0.5 / kernel.c0 if kernel.c0 > 0 else variance
    mean = kernel.z_mean if kernel.has_mean else kernel.mu0
    return mean, variance, mean, variance


@dataclass(frozen=True)
class GaussianChain:
    """A chain of the kernel for one model and its released values.

    Attributes
    ----------
    kernel : GaussianModel
    names : (str, str)
        Names of the mean and the spread.
    power : int
        The variance is the spread to this power.
    entries : dict
        By release, for each of its values: a field of the kernel, an offset and a factor.
    """

    kernel: GaussianModel
    names: tuple[str, str]
    power: int
    entries: dict[str, list[tuple[str, float, float]]]
    sweeps: ClassVar[int] = SWEEPS

    @classmethod
    def read(cls, reading: Reading) -> GaussianChain:
        """Read a model that the kernel covers."""
        group = covered(reading)
        spread, power = _spread(group)
        entries = {r.name: [_place(c) for c in r.mean_and_variance()] for r in group.releases}
        kernel = kernel_model(reading.model, group)
        return cls(kernel, (group.mean.name, spread.name), power, entries)

    def given(self, released: Mapping[str, np.ndarray]) -> GaussianChain:
        """Return the chain for other released values."""
        fields: dict[str, Any] = {
            field: float((z - offset) / factor)
            for name, entries in self.entries.items()
            for z, (field, offset, factor) in zip(
                np.ravel(released[name]).tolist(), entries, strict=True
            )
        }
        kernel = self.kernel._replace(**fields)
        return GaussianChain(kernel, self.names, self.power, self.entries)

    def begin(
        self,
        rng: np.random.Generator,
        tune: int,
        thin: int = SWEEPS,
        *,
        pieces: Pieces | None = None,
    ):
        """Return a state after the draws to be discarded."""
        state, out = start(self.kernel, rng), np.empty((tune, 2))
        for piece in pieces.of(tune) if pieces else [slice(None)]:
            state = run_sweeps(rng, state, self.kernel, thin, out[piece])
        return state

    def advance(self, rng: np.random.Generator, state, draws: int, thin: int = SWEEPS):
        """Return the next state, and a row (mean, variance) for each draw."""
        out = np.empty((draws, 2))
        return run_sweeps(rng, state, self.kernel, thin, out), out

    def values(
        self, rows: np.ndarray, rng: np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Return draws by name; rows (..., 2)."""
        mean, spread = self.names
        spread_draws = rows[..., 1] ** (1 / self.power) if self.power > 1 else rows[..., 1]
        return {mean: rows[..., 0], spread: spread_draws}

    posterior = values


def sample(reading: Reading, **kwargs: Any) -> DataTree:
    """Run the fused kernel on every chain; `tune` draws are discarded."""
    return run(reading, "fused Gibbs", GaussianChain.read(reading), "Gibbs sweeps", **kwargs)


ROUTES.add(Route("fused Gibbs", "statistics", plan, ARGUMENTS, usual={"fused Gibbs": 1}))
