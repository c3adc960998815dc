r"""`sppe` and `sple`: the posterior given a private release of data that only a simulator knows.

Both learn from simulations alone (Xiong, Ju & Zhang): SPPE the posterior density
:math:`q(\theta \mid z)`, SPLE the density of the release :math:`q(z \mid \theta)`, which then
stands for the likelihood in a PyMC model.
"""

from __future__ import annotations

import importlib
import logging
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.util import get_random_generator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from xarray import DataTree

from pymc_dp.graphs.draws import result
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.neural.ensemble import ensemble_draws, resample
from pymc_dp.neural.noise import Channel, Noise, has_atoms, spans
from pymc_dp.neural.settings import Training
from pymc_dp.neural.simulator import Prior, Problem, Simulator, function_problem, model_problem
from pymc_dp.neural.standard import Standard

if TYPE_CHECKING:
    from pymc_dp.neural.density import Density
    from pymc_dp.neural.training import Box, Kind, Simulations, Trainer

_log = logging.getLogger("pymc.dp")

# Moves of the walkers that propose the next round's parameters.
_WALKS = 50
_LEAKAGE = 0.01
# Of the parameters that a box is around, 0.2% of each entry are outside of its quantiles.
_BORDER = 0.05
# Arguments of pm.sample that would change what comes back.
_NOT_TAKEN = ("idata_kwargs", "discard_tuned_samples", "return_inferencedata", "trace", "model")


def sppe(
    model: pm.Model | None = None,
    *,
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    mechanism: Mechanism | None = None,
    observed: Any = None,
    var_names: Sequence[str] | None = None,
    rounds: int = 10,
    simulations: int = 1000,
    noise_draws: int = 8,
    estimator: Literal["maf", "nsf"] | None = None,
    qmc: bool = True,
    training: Training | None = None,
    earlier: DataTree | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed=None,
    device: str = "cpu",
    progressbar: bool = True,
) -> DataTree:
    r"""Estimate the posterior density by sequential private posterior estimation.

    A normalizing flow :math:`q(\theta \mid z)` is trained on simulations. The parameters of the
    first round are drawn from the prior, those of every later round from the posterior estimated
    so far; the loss takes the difference between the two into account. A simulation is released
    anew M times in every minibatch. A posterior may be hundreds of times narrower than the prior,
    in whose units the first network computes: in the round after half of them, and not before the
    third, a new network takes its place, which learns from the simulations in a box around the
    parameters of the later rounds only. The last round trains the longest.

    Parameters
    ----------
    model : pm.Model, optional
        A model with `PrivateObservation` releases; the one of the context if None. Everything in
        it can be drawn, nothing but the priors needs a density: the confidential data may be a
        ``pm.CustomDist(..., random=...)`` or a ``pm.Simulator``.
        Confidential data are the free variables that a statistic uses directly, if other free
        variables are their parents, and of those without parents the ones with as many rows (the
        covariates of a regression). The other free variables that the releases depend on are the
        parameters.
    simulator, prior, mechanism, observed : optional
        In the place of a model: a function ``(parameters, rng) -> statistics`` of a dict of
        arrays of shapes (count, ...) and a `numpy.random.Generator`, which returns one row of
        statistics for each simulation (it is tried with a count of 4 first); a pm.Model of the
        parameters, or a dict of ``X.dist(...)``; the mechanism; and what it released.
    var_names : sequence of str, optional
        The parameters, where the rule above does not find those wanted; everything else is
        simulated.
    rounds, simulations : int
        Number of rounds, those of an earlier result not counted, and of calls of the simulator in
        each.
    noise_draws : int
        Releases M of each simulation in a minibatch.
    estimator : {"maf", "nsf"}, optional
        Masked autoregressive or neural spline flow, in the place of the one in `training`.
    qmc : bool, default True
        Draw the noise by randomized quasi-Monte Carlo, else independently.
    training : Training, optional
        Settings of the networks and the optimiser.
    earlier : DataTree, optional
        An earlier result of `sppe` or `sple` for the same simulator and statistic; the mechanism
        and the release may be others. A network is trained on its simulations, in a round of its
        own in the training's history, and new rounds follow. At 50 of its parameters the simulator
        runs again, twice, to see that the statistic is the same.
    draws, chains : int
        Size of the result. The draws are independent; the chains are only their arrangement.
    random_seed : optional
        Seed. Results can be repeated on the same machine and versions.
    device : str, default "cpu"
        Where torch trains: "cpu", "cuda", ...
    progressbar : bool, default True
        Show rounds and epochs.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats (lp, the log density of the draws under the network, on the
        scale of the unconstrained parameters), observed_data, training (both losses by round and
        epoch, per release) and simulations (to go on from). Attributes of the posterior name the
        method and the estimator, which is "mdn", a mixture of Normals, where the density is that of
        a single variable; ``leakage`` is the share of draws without a prior density, or far from
        all the parameters of the later rounds, which were drawn again. The former do not occur
        where transforms of PyMC cover the support of the prior.

    Raises
    ------
    ImportError
        torch or sbi are not installed.
    ValueError, NotImplementedError
        Naming the variable and what to do.

    References
    ----------
    .. [1] Y. Xiong, N. P. Ju, S. Zhang. Conditional density estimations from privacy-protected
       data.
    """
    problem = read_problem(model, simulator, prior, mechanism, observed, var_names)
    check_counts(draws=draws, chains=chains)
    noise = _noise(problem, noise_draws, qmc)
    run = Run("posterior", problem, training, estimator, noise, device, random_seed)
    with run.torch():
        found = run.rounds(rounds, simulations, earlier, _posterior_proposal, progressbar)
        run.check_range(found)
        given, density = problem.observed[None], run.trainer.density
        drawn, leakage = supported_draws(problem.prior, density, given, draws * chains, run.box)
        theta = drawn[:, 0]
        logq = density.log_prob(theta, given)
    warn_of_leakage(problem.prior, leakage, run.box)
    warn_of_border(run.box, theta)
    stats = {"lp": logq.reshape(chains, draws)}
    shaped = {
        k: v.reshape(chains, draws, *v.shape[1:]) for k, v in problem.prior.natural(theta).items()
    }
    return run.tree(shaped, stats, found, {"method": "sppe", "leakage": leakage})


def sple(
    model: pm.Model | None = None,
    *,
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    mechanism: Mechanism | None = None,
    observed: Any = None,
    var_names: Sequence[str] | None = None,
    rounds: int = 10,
    simulations: int = 1000,
    noise_draws: int = 8,
    estimator: Literal["maf", "nsf"] | None = None,
    qmc: bool = True,
    training: Training | None = None,
    earlier: DataTree | None = None,
    draws: int = 1000,
    tune: int = 500,
    chains: int = 4,
    random_seed=None,
    device: str = "cpu",
    progressbar: bool = True,
    **kwargs: Any,
) -> DataTree:
    r"""Estimate the likelihood by sequential private likelihood estimation, and sample with it.

    A normalizing flow :math:`q(z \mid \theta)` is trained on simulations, of parameters from the
    prior at first and then from the posterior under the network; the loss is right whatever they
    are drawn from. In the round after half of them a new network takes over, as in `sppe`. After
    the last one, NUTS samples the model's priors with the network as the likelihood.

    Parameters
    ----------
    model, simulator, prior, mechanism, observed, var_names, rounds, simulations, noise_draws, \
    estimator, qmc, training, earlier, random_seed, device, progressbar
        As for `sppe`.
    draws, tune, chains : int
        Of `pm.sample`. It takes minutes, too: each step evaluates the network.
    **kwargs
        Further arguments of `pm.sample`. Chains run one after another unless cores= is given:
        ``cores=2`` gives the same draws in half of the time.
        Many divergences, or chains that do not agree, say that the network has not been trained
        enough.

    Returns
    -------
    xarray.DataTree
        The groups posterior, sample_stats and observed_data, and those named training and
        simulations of `sppe`.

    Raises
    ------
    ImportError, ValueError, NotImplementedError
        As `sppe`; also for a clipped release, unless it is on a lattice that is not fine beside the
        noise: a flow cannot follow its atoms.

    Notes
    -----
    Of whole-number releases, which get uniform noise one step wide when the network is trained, it
    learns a density whose integral over a step is about their probability; that blurs the posterior
    where a step is wide beside the spread of the releases.
    """
    wrong = [name for name in _NOT_TAKEN if name in kwargs]
    if wrong:
        raise TypeError(f"sple does not take {wrong[0]}= of pm.sample: leave it out")
    problem = read_problem(model, simulator, prior, mechanism, observed, var_names)
    check_counts(draws=draws, chains=chains)
    for channel in problem.channels:
        if has_atoms(channel):
            raise NotImplementedError(
                f"{channel.name!r}: {channel.mechanism!r} releases single values with positive "
                f"probability, for which SPLE's network has no density: use dp.neural.sppe"
            )
    noise = _noise(problem, noise_draws, qmc)
    run = Run("likelihood", problem, training, estimator, noise, device, random_seed)
    with run.torch():
        found = run.rounds(rounds, simulations, earlier, _likelihood_proposal, progressbar)
        run.check_range(found)
        from pymc_dp.neural.likelihood import network_model

        starts = _likelihood_proposal(run, found, 2 * chains + 100)
        warn_of_border(run.box, starts)
        starts = starts[:chains]
        network = network_model(problem, run.trainer.density, run.box)
        initial = problem.prior.natural(starts)
        with network:
            tree = pm.sample(
                draws=draws,
                tune=tune,
                chains=chains,
                random_seed=int(run.rng.integers(2**31)),
                progressbar=progressbar,
                **{
                    "cores": 1,
                    "nuts_sampler": "pymc",
                    "init": "adapt_diag",
                    "initvals": [{k: v[c] for k, v in initial.items()} for c in range(chains)],
                }
                | kwargs,
            )
    posterior = {n: tree["posterior"][n].to_numpy() for n in problem.prior.names}
    stats = {n: v.to_numpy() for n, v in tree["sample_stats"].data_vars.items()}
    return run.tree(posterior, stats, found, {"method": "sple"})


def _noise(problem: Problem, draws: int, qmc: bool) -> MakeNoise:
    check_counts(noise_draws=draws)

    def noise(statistic: np.ndarray, rng: np.random.Generator) -> Noise:
        return Noise(problem.channels, draws, rng, qmc=qmc)

    return noise


def check_counts(**counts: Any) -> None:
    """Refuse what is no whole number of at least 1."""
    for name, value in counts.items():
        try:
            whole = operator.index(value)
        except TypeError:
            raise TypeError(f"{name}={value!r}: write a whole number") from None
        if whole < 1:
            raise ValueError(f"{name}={value}: it must be at least 1")


def _check_device(device: Any) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r}: torch cannot compute there ({reason}): write 'cpu', or 'cuda' "
            f"where there is a GPU"
        ) from None


def check_installed() -> None:
    """Refuse to go on without the packages of the extra."""
    for package in ("torch", "sbi"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(
                f"neural estimation needs {package}, which is not installed ({error}): "
                f'pip install "pymc-dp[neural]"'
            ) from error


def read_problem(
    model, simulator, prior, mechanism, observed, var_names, shape=None, *, released=True
) -> Problem:
    """Read what was given to `sppe`, with the shape in the place of observed=; see there."""
    check_installed()
    given = {"prior": prior, "mechanism": mechanism, "observed": observed}
    if simulator is None:
        stray = [name for name, value in given.items() if value is not None]
        if stray:
            raise TypeError(f"{stray[0]}= goes with simulator=; a model has its own")
        return model_problem(model, var_names, released=released)
    if shape is not None:
        del given["observed"]
    missing = [f"{name}=" for name, value in given.items() if value is None]
    if model is not None or var_names is not None or missing:
        raise TypeError(
            "simulator= takes prior=, mechanism= and observed=, and no model or var_names"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return function_problem(simulator, prior, mechanism, observed, shape)


# Noise from the statistics of the first simulations, and a generator.
MakeNoise = Callable[[np.ndarray, np.random.Generator], Any]
Proposal = Callable[["Run", "Simulations", int], np.ndarray]


class Run:
    """One fit: its generators, its network, and what it leaves behind."""

    def __init__(
        self,
        kind: Kind,
        problem: Problem,
        training: Training | None,
        estimator: Literal["maf", "nsf"] | None,
        noise: MakeNoise,
        device: str,
        random_seed: Any,
    ):
        from pymc_dp.neural.training import Trainer

        _check_device(device)
        training = Training() if training is None else training
        if not isinstance(training, Training):
            raise TypeError(f"training: dp.neural.Training(...), not {training!r}")
        if estimator is not None:
            training = replace(training, estimator=estimator)
        self.kind, self.problem, self.settings = kind, problem, training
        self.rng = get_random_generator(random_seed)
        self._began = time.perf_counter()
        self._make_trainer = partial(Trainer, kind, training=training, rng=self.rng, device=device)
        self._make_noise = noise
        self.trainer: Trainer  # once there are simulations
        self.box: Box | None = None  # of the parameters that the network has seen, if not all
        self.losses: list[tuple[np.ndarray, np.ndarray]] = []

    @contextmanager
    def torch(self) -> Iterator[None]:
        """Seed torch for this fit only; networks of this size run fastest on one thread."""
        import torch

        from pymc_dp.neural.density import single_precision

        threads = torch.get_num_threads()
        with torch.random.fork_rng(), single_precision(), warnings.catch_warnings():
            # nflows calls it; nobody but nflows can change that.
            warnings.filterwarnings("ignore", message="torch.triangular_solve is deprecated")
            torch.manual_seed(int(self.rng.integers(2**31)))
            torch.set_num_threads(1)
            try:
                yield
            finally:
                torch.set_num_threads(threads)

    def rounds(
        self,
        rounds: int,
        simulations: int,
        earlier: DataTree | None,
        propose: Proposal,
        progressbar: bool,
    ) -> Simulations:
        """Simulate and train in turn; returns all simulations."""
        check_counts(rounds=rounds, simulations=simulations)
        atoms, share = self.settings.atoms, self.settings.validation
        if simulations - max(round(simulations * share), 2) < 2 * atoms:
            least = round(2 * atoms / (1 - share)) + 3
            raise ValueError(
                f"simulations={simulations}: too few for networks that compare atoms={atoms}, with "
                f"validation={share} of them kept apart; write {least} or more"
            )
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
        )
        prior, problem = self.problem.prior, self.problem
        with Progress(*columns, disable=not progressbar) as progress:
            outer = progress.add_task("Rounds", total=rounds, loss="")
            inner = progress.add_task("Epochs", loss="")

            def report(epoch: int, training: float, validation: float) -> None:
                progress.update(inner, completed=epoch + 1, loss=f"loss {validation:.3f}")

            def train(data: Simulations, *, last: bool, renew: bool = False) -> None:
                epochs = self.settings.epochs(self.kind, last)
                progress.reset(inner, total=epochs, loss="")
                if renew or self.box is not None:
                    self.box = data.later_box(first)
                    data = data.within(self.box)
                self.losses.append(self.trainer.fit(data, epochs, report, renew=renew, last=last))

            data = None if earlier is None else self._earlier(earlier)
            first = 0 if data is None else int(data.round.max()) + 1
            # Before the third round, a box would keep out what the first estimate has missed. The
            # rounds that follow simulate where the new network is wrong for want of simulations.
            takeover = first + max(rounds // 2, 2)
            if data is not None:
                problem.check_seeded(data.theta[:4], int(self.rng.integers(2**31)))
                problem.check_same(data.theta[-50:], data.statistic[-50:], self.rng)
                self._prepare(data)
                train(data, last=True)  # for this release, which may be another
            for number in range(first, first + rounds):
                if data is None:
                    theta = prior.draw(simulations, self.rng)
                    problem.check_seeded(theta[:4], int(self.rng.integers(2**31)))
                else:
                    theta = propose(self, data, simulations)
                new = self._simulated(theta, number)
                if data is None:
                    self._prepare(new)
                data = new if data is None else data.joined(new)
                train(data, renew=number == takeover, last=number == first + rounds - 1)
                progress.advance(outer)
        assert data is not None
        return data

    def _prepare(self, data: Simulations) -> None:
        """Make the noise, for which the first statistics may matter, and what trains with it."""
        noise = self._make_noise(data.statistic, self.rng)
        self.trainer = self._make_trainer(noise=noise)
        if self.kind == "likelihood":
            self._warn_of_steps(noise, data.statistic)

    def _warn_of_steps(self, noise: Noise, statistic: np.ndarray) -> None:
        """Warn of releases of few values, which a smooth density cannot follow."""
        spread = noise.draw(statistic).reshape(-1, noise.size).std(axis=0)
        for channel, own in spans(self.problem.channels):
            if np.any(noise.spacing[own] > 1.25 * spread[own]):
                _log.warning(
                    "%r takes few values (steps of %g, standard deviation %.2g), and SPLE's smooth "
                    "density blurs them: use dp.neural.sppe",
                    channel.name, channel.mechanism.spacing, spread[own].min(),
                )  # fmt: skip

    def _simulated(self, theta: np.ndarray, number: int) -> Simulations:
        from pymc_dp.neural.training import Simulations

        count = len(theta)
        held = np.zeros(count, bool)
        held[: max(round(count * self.settings.validation), 2)] = True
        return Simulations(
            theta,
            self.problem.simulate(theta, self.rng),
            self.problem.prior.logp(theta),
            np.full(count, number),
            held,
        )

    def _earlier(self, tree: DataTree) -> Simulations:
        from pymc_dp.neural.training import Simulations

        if not isinstance(tree, DataTree):
            raise TypeError(f"earlier: a result of sppe or sple, not {tree!r}")
        if "simulations" not in tree.children:
            raise ValueError("earlier: this result has no group 'simulations'")
        group = tree["simulations"]
        data = Simulations(*(group[n].to_numpy() for n in Simulations.__annotations__))
        shape = data.theta.shape[1], data.statistic.shape[1]
        wanted = self.problem.prior.width, len(self.problem.observed)
        if shape != wanted:
            raise ValueError(
                f"earlier: its simulations have {shape[0]} parameters and {shape[1]} statistics, "
                f"this model has {wanted[0]} and {wanted[1]}"
            )
        names = [str(n) for n in np.atleast_1d(group.attrs.get("parameters", []))]
        if names and names != self.problem.prior.names:
            raise ValueError(
                f"earlier: its simulations are of the parameters {', '.join(map(repr, names))}, "
                f"this model has {', '.join(map(repr, self.problem.prior.names))}"
            )
        found = self.problem.prior.logp(data.theta)
        if not np.allclose(found, data.log_prior, rtol=1e-6, atol=1e-6):
            raise ValueError(
                "earlier: its simulations come from another prior, of which the log densities of "
                "the parameters differ; leave earlier= out, or use the prior of that result"
            )
        return data

    def check_range(self, data: Simulations) -> None:
        """Warn of a release beyond all that the last round released."""
        recent = data.statistic[data.round == data.round.max()]
        released = self.trainer.noise.draw(recent).reshape(-1, recent.shape[1])
        warn_of_range(self.problem.channels, released, self.problem.observed)

    def tree(
        self,
        posterior: dict[str, np.ndarray],
        stats: dict[str, np.ndarray],
        data: Simulations,
        attributes: dict[str, Any],
    ) -> DataTree:
        """Join the result."""
        model, prior = self.problem.model, self.problem.prior
        observed = {
            channel.name: self.problem.observed[place].reshape(channel.shape)
            for channel, place in spans(self.problem.channels)
        }
        attributes = {
            "sampling_time": time.perf_counter() - self._began,
            "noise_draws": self.trainer.noise.draws,
            "estimator": self.trainer.density.estimator,
            **attributes,
        }
        tree = result(model, posterior, stats, observed, attributes, prior.deterministics)
        epochs = max(len(a) for a, _ in self.losses)
        losses = np.full((2, len(self.losses), epochs), np.nan)
        for r, pair in enumerate(self.losses):
            for k, values in enumerate(pair):
                losses[k, r, : len(values)] = values
        tree["training"] = DataTree(
            xr.Dataset(
                {
                    n: (("round", "epoch"), v)
                    for n, v in zip(("loss", "validation_loss"), losses, strict=True)
                }
            )
        )
        dimensions = {"theta": "parameter", "statistic": "entry"}
        tree["simulations"] = DataTree(
            xr.Dataset(
                {
                    n: (("simulation", *([dimensions[n]] if n in dimensions else [])), v)
                    for n, v in vars(data).items()
                },
                attrs={"parameters": prior.names},
            )
        )
        return tree


def _posterior_proposal(run: Run, data: Simulations, count: int) -> np.ndarray:
    problem, density = run.problem, run.trainer.density
    drawn, _ = supported_draws(problem.prior, density, problem.observed[None], count, run.box)
    return drawn[:, 0]


def supported_draws(
    prior: Prior, density: Density, condition: np.ndarray, count: int, box: Box | None = None
) -> tuple[np.ndarray, float]:
    """Draw for each condition where the prior has a density, in the box; also the share elsewhere.

    Returns an array of shape (count, conditions, width).
    """

    def inside(drawn: np.ndarray) -> np.ndarray:
        flat = drawn.reshape(-1, prior.width)
        possible = np.isfinite(prior.logp(flat))
        if box is not None:
            possible &= box.holds(flat)
        return possible.reshape(drawn.shape[:-1])

    drawn = density.sample(condition, count)
    good = inside(drawn)
    for j in np.flatnonzero(~good.all(axis=0)):
        parts, kept, tried = [drawn[good[:, j], j]], int(good[:, j].sum()), count
        while kept < count:
            if tried > 100 * count:
                raise RuntimeError(
                    f"only {kept} of {tried} draws of the network have a prior density"
                    f"{_in_box(box)}{_no_transform(prior)}"
                )
            again = density.sample(condition[[j]], count)
            parts.append(again[inside(again)])
            tried, kept = tried + count, kept + len(parts[-1])
        drawn[:, j] = np.concatenate(parts)[:count]
    return drawn, 1.0 - float(good.mean())


def _no_transform(prior: Prior) -> str:
    names = ", ".join(map(repr, prior.untransformed))
    return (
        f": {names} has no transform that keeps it there; leave default_transform=None out, or "
        f"give it a transform="
        if names
        else ": simulate more, in more rounds, or train for longer"
    )


def _in_box(box: Box | None) -> str:
    return "" if box is None else " and are near those of the later rounds"


def warn_of_leakage(prior: Prior, leakage: float, box: Box | None = None) -> None:
    """Warn of draws that were refused."""
    if leakage > _LEAKAGE:
        _log.warning(
            "only %.1f%% of the network's draws have a prior density%s; the others were drawn "
            "again%s",
            100 * (1 - leakage),
            _in_box(box),
            _no_transform(prior),
        )


def warn_of_border(box: Box | None, theta: np.ndarray) -> None:
    """Warn of a posterior that the box cuts."""
    share = 0.0 if box is None else box.border(theta)
    if share > _BORDER:
        _log.warning(
            "%.0f%% of the posterior is at the border of the parameters that were simulated in "
            "later rounds, which may cut it: take more rounds, or go on with earlier=",
            100 * share,
        )


def warn_of_range(channels: Sequence[Channel], released: np.ndarray, value: np.ndarray) -> None:
    """Warn of a release, flattened, beyond all those simulated, (count, size)."""
    low, high = released.min(0), released.max(0)
    for channel, own in spans(channels):
        outside = (value[own] < low[own]) | (value[own] > high[own])
        if not outside.any():
            continue
        j = int(np.argmax(outside))
        index = ", ".join(str(int(i)) for i in np.unravel_index(j, channel.shape))
        _log.warning(
            "%r: the released value%s is %.4g, and all simulated ones lie between %.4g and %.4g%s: "
            "the networks extrapolate. Check the simulator and the statistic, or use a wider prior",
            channel.name,
            f" at [{index}]" if index else "",
            value[own][j],
            low[own][j],
            high[own][j],
            f" ({outside.sum()} of {channel.size} values are out of range)"
            if outside.sum() > 1
            else "",
        )


def _likelihood_proposal(run: Run, data: Simulations, count: int) -> np.ndarray:
    """Draw parameters from the posterior under the likelihood network."""
    problem, rng = run.problem, run.rng

    def log_density(theta: np.ndarray) -> np.ndarray:
        level = np.array(problem.prior.logp(theta))
        inside = np.isfinite(level)
        if run.box is not None:
            inside &= run.box.holds(theta)
            level[~inside] = -np.inf
        given = np.broadcast_to(problem.observed, (inside.sum(), len(problem.observed)))
        level[inside] += run.trainer.density.log_prob(given, theta[inside])
        return np.where(np.isfinite(level), level, -np.inf)

    # Walkers start at simulated parameters, the likelier the more often.
    walkers = count + count % 2
    recent = data.theta[data.round == data.round.max()]
    level = log_density(recent)
    if not np.isfinite(level).any():
        raise RuntimeError(
            "the network gives the release no density at any parameter of the last round: see that "
            "the simulator can lead to such a release, and simulate more"
        )
    start = rng.permutation(recent[resample(level, walkers, rng)])
    spread = 0.1 * Standard.of(recent).scale
    moved = start + spread * rng.standard_normal(start.shape)
    start = np.where(np.isfinite(log_density(moved))[:, None], moved, start)
    return ensemble_draws(log_density, start, _WALKS, rng)[:count]
