r"""One network for a range of privacy levels: the level is an input of the network.

It is trained once, on simulations from the prior that are released at random levels, and then gives
the posterior of any release at any level of the range, and the loss of precision at each level,
without new simulations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.util import get_random_generator
from xarray import DataTree

from pymc_dp.graphs.draws import entry_labels, result
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.checks import check_attainable
from pymc_dp.neural.fit import read_problem
from pymc_dp.neural.noise import GradedNoise, checked_levels
from pymc_dp.neural.problem import Problem
from pymc_dp.neural.run import Run, check_counts, supported_draws, warn_of_leakage, warn_of_range
from pymc_dp.neural.settings import Training
from pymc_dp.neural.simulator import Simulator

if TYPE_CHECKING:
    from pymc_dp.neural.density import Density

_MOST_NUMBERS = 20_000_000  # numbers in a batch of draws


def amortise(
    model: pm.Model | None = None,
    *,
    mechanism: Callable[[Any], Mechanism],
    epsilon: tuple[float, float],
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    shape: int | Sequence[int] | None = None,
    var_names: Sequence[str] | None = None,
    simulations: int = 20_000,
    noise_draws: int = 4,
    estimator: Literal["maf", "nsf"] | None = None,
    qmc: bool = True,
    training: Training | None = None,
    random_seed=None,
    device: str = "cpu",
    progressbar: bool = True,
) -> AmortisedPosterior:
    r"""Train a posterior density :math:`q(\theta \mid z, \log\varepsilon)` for a range of levels.

    The parameters are drawn from the prior, in a single round; every minibatch releases each of its
    simulations M times, at levels that are log-uniform on the range.

    Parameters
    ----------
    model : pm.Model, optional
        A model with one `PrivateObservation`, as for `sppe`; its own mechanism is replaced.
    mechanism : callable
        The mechanism at a level, such as
        ``lambda epsilon: dp.LaplaceMechanism.from_epsilon(epsilon, 0.1)``. It is called with arrays
        of levels, with trailing axes of length one for the axes of the release.
    epsilon : (low, high)
        The range of the level. It is whatever `mechanism` takes: rho would do as well.
    simulator, prior, shape : optional
        In the place of a model, as for `sppe`, and the shape of what is released.
    var_names, noise_draws, estimator, qmc, training, random_seed, device, progressbar
        As for `sppe`.
    simulations : int
        Calls of the simulator. More than for one release: the network has to know all of them.

    Returns
    -------
    AmortisedPosterior
        The network, which draws for any release at any level of the range.

    Raises
    ------
    ImportError
        torch or sbi are not installed.
    TypeError
        A `mechanism` that is no function of the level, or returns none; a simulator without
        `shape`.
    ValueError
        A range that is none, and what `sppe` refuses.
    NotImplementedError
        A model with several releases, and what `sppe` does not cover.

    Examples
    --------
    Far too few simulations for a result, but fast:

    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> fast = dp.neural.Training(hidden_features=8, epoch_steps=5, max_epochs=2, last_epochs=4)
    >>> few = {"simulations": 100, "training": fast, "random_seed": 1, "progressbar": False}
    >>> def mechanism(epsilon):
    ...     return dp.LaplaceMechanism.from_epsilon(epsilon, 0.3)
    >>> levels = (0.5, 20.0)
    >>> posterior = dp.neural.amortise(model, mechanism=mechanism, epsilon=levels, **few)
    >>> posterior.sample(1.0, draws=50, chains=2, random_seed=2)["posterior"]["mu"].shape
    (2, 50)
    """
    try:
        low, high = (float(e) for e in epsilon)
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not 0.0 < low < high < np.inf:
        raise ValueError(f"epsilon={epsilon!r}: write the range of the level, (0.1, 10.0) say")
    if not callable(mechanism):
        raise TypeError(
            f"mechanism: a function of the level, such as lambda epsilon: "
            f"dp.LaplaceMechanism.from_epsilon(epsilon, 1.0), not {mechanism!r}"
        )
    if simulator is None and shape is not None:
        raise TypeError("shape= goes with simulator=; a model has its own")
    if simulator is not None and shape is None:
        raise TypeError("simulator= takes shape=, that of what is released: shape=() for a number")
    check_counts(noise_draws=noise_draws, simulations=simulations)
    template = mechanism(np.sqrt(low * high))
    if not isinstance(template, Mechanism):
        raise TypeError(
            f"mechanism must return one, such as lambda epsilon: dp.LaplaceMechanism.from_epsilon("
            f"epsilon, 1.0); it returned {template!r}"
        )
    simulator_mechanism = None if simulator is None else template
    problem = read_problem(
        model, simulator, prior, simulator_mechanism, None, var_names, shape, released=False
    )
    if len(problem.channels) > 1:
        raise NotImplementedError(
            f"a level of privacy is that of one release; the model has "
            f"{', '.join(repr(c.name) for c in problem.channels)}: declare one of "
            f"pt.concatenate([...])"
        )
    [stated] = problem.channels
    channel = replace(stated, mechanism=template)
    problem = replace(problem, channels=(channel,))
    began = time.perf_counter()

    def noise(statistic, rng):
        levels = low, high
        return GradedNoise(channel, mechanism, levels, statistic, noise_draws, rng, qmc=qmc)

    run = Run("posterior", problem, training, estimator, noise, device, random_seed)
    with run.torch():
        data = run.rounds(1, simulations, None, _no_later_rounds, progressbar)
    seconds, trainer = time.perf_counter() - began, run.trainer
    graded = cast(GradedNoise, trainer.noise)
    return AmortisedPosterior(problem, graded, trainer.density, seconds, data, run.losses)


def _no_later_rounds(*_: Any) -> np.ndarray:
    raise AssertionError("an amortised posterior has a single round")


@dataclass(frozen=True)
class AmortisedPosterior:
    r"""A posterior density :math:`q(\theta \mid z, \log\varepsilon)`; `amortise` makes it.

    ``cloudpickle.dumps`` stores it, the functions that it was given included.

    Attributes
    ----------
    problem : Problem
        Prior, simulator and release.
    noise : GradedNoise
        Releases at each level of the range.
    density : Density
        The network, with its units.
    training_time : float
        Seconds, simulations included.
    simulations : Simulations
        The simulations that the network was trained on.
    losses : list of pairs of arrays
        Training and validation loss by epoch.

    Examples
    --------
    Far too few simulations for a result, but fast:

    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> fast = dp.neural.Training(hidden_features=8, epoch_steps=5, max_epochs=2, last_epochs=4)
    >>> few = {"simulations": 100, "training": fast, "random_seed": 1, "progressbar": False}
    >>> def mechanism(epsilon):
    ...     return dp.LaplaceMechanism.from_epsilon(epsilon, 0.3)
    >>> levels = (0.5, 20.0)
    >>> posterior = dp.neural.amortise(model, mechanism=mechanism, epsilon=levels, **few)
    >>> posterior.sample(1.0, draws=50, chains=2, random_seed=2)["posterior"]["mu"].shape
    (2, 50)
    >>> costs = posterior.privacy_utility([1.0, 10.0], replicates=5, draws=50, random_seed=3)
    >>> costs["sd"].sizes["epsilon"]
    2
    """

    problem: Problem
    noise: GradedNoise
    density: Density
    training_time: float
    simulations: Any
    losses: list[tuple[np.ndarray, np.ndarray]]

    @property
    def labels(self) -> list[str]:
        """Names of the entries of all parameters, ``beta[0]``."""
        return entry_labels(self.problem.prior.shapes)

    def entries(self, theta: np.ndarray) -> np.ndarray:
        """Return the entries of the parameters, (..., count), in the order of `labels`.

        Parameters
        ----------
        theta : ndarray of shape (..., width)
            Unconstrained parameters.
        """
        values = self.problem.prior.natural(theta).values()
        return np.concatenate([v.reshape(*theta.shape[:-1], -1) for v in values], axis=-1)

    def sample(
        self,
        epsilon: float,
        observed: ArrayLike | None = None,
        *,
        draws: int = 1000,
        chains: int = 4,
        random_seed=None,
    ) -> DataTree:
        """Draw from the posterior given one release; this takes milliseconds.

        Parameters
        ----------
        epsilon : float
            The level of the release, within the range.
        observed : array_like, optional
            What was released; that of the model if None.
        draws, chains : int
            Size of the result. The draws are independent; chains are their arrangement.
        random_seed : optional
            Seed.

        Returns
        -------
        xarray.DataTree
            Groups posterior, sample_stats (lp, the log density of the unconstrained parameters)
            and observed_data. The attribute ``leakage`` of the posterior is that of `sppe`.

        Raises
        ------
        ValueError
            A level outside the range, a release of another shape, or none where the model has none.
        TypeError
            A release that is not numeric.
        """
        if np.ndim(epsilon):
            raise ValueError(f"epsilon={epsilon!r}: write the level of the release, one number")
        check_counts(draws=draws, chains=chains)
        level = checked_levels(self.noise, [epsilon])
        [channel] = self.problem.channels
        if observed is None and np.any(np.isnan(self.problem.observed)):
            raise ValueError("observed= is needed: what amortise was given has no release")
        try:
            value = np.asarray(self.problem.observed if observed is None else observed, "float64")
        except (TypeError, ValueError):
            raise TypeError(f"observed: a number or an array of them, not {observed!r}") from None
        if value.shape not in (channel.shape, (channel.size,)) or not np.all(np.isfinite(value)):
            raise ValueError(
                f"observed: {channel.name!r} releases {channel.size} finite numbers, of shape "
                f"{channel.shape}; got {observed!r}"
            )
        check_attainable(channel.name, self.noise.mechanism(level[0]), value.reshape(channel.shape))
        value = value.reshape(1, -1)
        rng = get_random_generator(random_seed)
        draws_by_release, leakage = self._drawn(value, level, draws * chains, rng)
        theta = draws_by_release[0]
        warn_of_leakage(self.problem.prior, leakage)
        statistic = self.simulations.statistic
        released = self.noise.release(statistic, np.repeat(level, len(statistic)), rng)
        warn_of_range([channel], released, value[0])
        repeated = np.repeat(value, len(theta), axis=0)
        lp = self.log_density(theta, repeated, np.repeat(level, len(theta)))
        return result(
            self.problem.model,
            self.problem.prior.natural(theta.reshape(chains, draws, -1)),
            {"lp": lp.reshape(chains, draws)},
            {channel.name: value.reshape(channel.shape)},
            {"method": "amortised sppe", "epsilon": float(epsilon), "leakage": leakage},
            self.problem.prior.deterministics,
        )

    def draw(
        self, released: np.ndarray, epsilon: np.ndarray, draws: int, random_seed=None
    ) -> np.ndarray:
        """Draw unconstrained parameters given each of several releases.

        Draws without a prior density are drawn again.

        Parameters
        ----------
        released : ndarray of shape (count, size)
        epsilon : ndarray of shape (count,)
        draws : int
            Draws for each release.
        random_seed : optional
            Seed or generator.

        Returns
        -------
        ndarray of shape (count, draws, width)
        """
        rng = get_random_generator(random_seed, copy=False)
        return self._drawn(released, epsilon, draws, rng)[0]

    def _drawn(
        self, released: np.ndarray, epsilon: np.ndarray, draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        import torch

        condition = self.noise.condition(released, epsilon)
        batch = max(_MOST_NUMBERS // (draws * (self.problem.prior.width + condition.shape[1])), 1)
        parts, outside = [], 0.0
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**31)))
            for start in range(0, len(condition), batch):
                conditions = condition[start : start + batch]
                drawn, share = supported_draws(self.problem.prior, self.density, conditions, draws)
                parts.append(drawn)
                outside += share * len(conditions)
        return np.concatenate(parts, axis=1).swapaxes(0, 1), outside / len(condition)

    def log_density(
        self, theta: np.ndarray, released: np.ndarray, epsilon: np.ndarray
    ) -> np.ndarray:
        """Log density of unconstrained parameters, one for each release; (count,).

        Parameters
        ----------
        theta : ndarray of shape (count, width)
            Unconstrained parameters.
        released : ndarray of shape (count, size)
            A release for each.
        epsilon : ndarray of shape (count,)
            Its level.
        """
        condition = self.noise.condition(released, epsilon)
        rows = max(_MOST_NUMBERS // (theta.shape[1] + condition.shape[1]), 1)
        parts = [slice(start, start + rows) for start in range(0, len(theta), rows)]
        return np.concatenate([self.density.log_prob(theta[p], condition[p]) for p in parts])

    def simulate(
        self, count: int, epsilon: ArrayLike, random_seed=None, *, given: Mapping | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Simulate parameters and releases at a level: (count, width) and (count, size).

        Parameters
        ----------
        count : int
        epsilon : float or array of shape (count,)
        random_seed : optional
            Seed or generator.
        given : dict, optional
            Values of all parameters by name; drawn from the prior if None.
        """
        rng = get_random_generator(random_seed, copy=False)
        levels = checked_levels(self.noise, np.broadcast_to(epsilon, count))
        theta, statistic = self._confidential(count, rng, given)
        return theta, self.noise.release(statistic, levels, rng)

    def _confidential(
        self, count: int, rng: np.random.Generator, fixed: Mapping | None
    ) -> tuple[np.ndarray, np.ndarray]:
        prior = self.problem.prior
        theta = prior.draw(count, rng) if fixed is None else np.tile(prior.place(fixed), (count, 1))
        return theta, self.problem.simulate(theta, rng)

    def privacy_utility(
        self,
        epsilon: Sequence[float] | np.ndarray,
        *,
        given: Mapping[str, ArrayLike] | None = None,
        replicates: int = 200,
        draws: int = 500,
        prob: float = 0.9,
        random_seed=None,
    ) -> xr.Dataset:
        """Return width, coverage and error of the posterior at each level, over simulated releases.

        Parameters
        ----------
        epsilon : sequence of float
            The levels.
        given : dict, optional
            True values of all parameters; drawn from the prior, anew for each replicate, if None.
        replicates : int
            Data sets; each is released once at every level.
        draws : int
            Posterior draws for a release.
        prob : float
            Probability of the intervals.
        random_seed : optional
            Seed.

        Returns
        -------
        xarray.Dataset
            By epsilon and parameter: ``sd``, the mean posterior standard deviation; ``width``, the
            mean length of the equal-tailed intervals; ``coverage``, the share of them that hold the
            truth; ``rmse``, the error of the posterior mean.
        """
        check_counts(replicates=replicates, draws=draws)
        rng = get_random_generator(random_seed)
        levels = checked_levels(self.noise, epsilon)
        names = ("sd", "width", "coverage", "rmse")
        measures = np.empty((len(names), len(levels), len(self.labels)))
        theta, statistic = self._confidential(replicates, rng, given)
        truth = self.entries(theta)
        for k, level in enumerate(levels):
            repeated = np.full(replicates, level)
            released = self.noise.release(statistic, repeated, rng)
            entries = self.entries(self.draw(released, repeated, draws, rng))
            low, high = np.quantile(entries, [(1 - prob) / 2, (1 + prob) / 2], axis=1)
            measures[0, k] = entries.std(axis=1).mean(axis=0)
            measures[1, k] = (high - low).mean(axis=0)
            measures[2, k] = ((low <= truth) & (truth <= high)).mean(axis=0)
            measures[3, k] = np.sqrt(((entries.mean(axis=1) - truth) ** 2).mean(axis=0))
        return xr.Dataset(
            {n: (("epsilon", "parameter"), v) for n, v in zip(names, measures, strict=True)},
            coords={"epsilon": levels, "parameter": self.labels},
            attrs={"prob": prob, "replicates": replicates},
        )
