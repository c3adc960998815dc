"""One run of neural estimation: rounds of simulations, training and proposals."""

from __future__ import annotations

import logging
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from pymc.util import get_random_generator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from xarray import DataTree

from pymc_dp.graphs.draws import result
from pymc_dp.neural.ensemble import ensemble_draws, resample
from pymc_dp.neural.noise import Channel, Noise, spans
from pymc_dp.neural.prior import Prior
from pymc_dp.neural.problem import Problem
from pymc_dp.neural.settings import Training
from pymc_dp.neural.standard import Standard

if TYPE_CHECKING:
    from pymc_dp.neural.density import Density
    from pymc_dp.neural.training import Box, Kind, Simulations, Trainer

_log = logging.getLogger("pymc.dp")

# Moves of the walkers that propose the next round's parameters.
_WALKS = 50
_LEAKAGE = 0.01
_LINE = 60.0  # seconds between lines where there is no progress bar
# Share of draws near the border of the box above which we warn; 0.2% of an entry is expected.
_BORDER = 0.05
# Makes the noise from the statistics of the first simulations, and a generator.
MakeNoise = Callable[[np.ndarray, np.random.Generator], Any]
Proposal = Callable[["Run", "Simulations", int], np.ndarray]


class Run:
    """One fit: its generator, its network, its losses and its result."""

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
        _check_device(device)
        training = Training() if training is None else training
        if not isinstance(training, Training):
            raise TypeError(f"training: dp.neural.Training(...), not {training!r}")
        if estimator is not None:
            training = replace(training, estimator=estimator)
        self.kind, self.problem, self.settings = kind, problem, training
        self.rng = get_random_generator(random_seed)
        self._began = time.perf_counter()
        self._make_noise, self._device = noise, device
        self.trainer: Trainer  # once there are simulations
        self.box: Box | None = None  # of the training parameters, if not all
        self.losses: list[tuple[np.ndarray, np.ndarray]] = []

    @contextmanager
    def torch(self) -> Iterator[None]:
        """Seed torch for this fit only; networks of this size run fastest on one thread."""
        import torch

        from pymc_dp.neural.density import single_precision

        threads = torch.get_num_threads()
        with torch.random.fork_rng(), single_precision(), warnings.catch_warnings():
            # The call is inside nflows.
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
        problem = self.problem
        with Progress(*columns, disable=not progressbar) as progress:
            outer = progress.add_task("Rounds", total=rounds, loss="")
            inner = progress.add_task("Epochs", loss="")

            said = time.perf_counter()

            def report(epoch: int, training: float, validation: float) -> None:
                nonlocal said
                progress.update(inner, completed=epoch + 1, loss=f"loss {validation:.3f}")
                if not progressbar and time.perf_counter() - said >= _LINE:
                    said = time.perf_counter()
                    done = f"Round {len(self.losses) + 1} of {rounds}, epoch {epoch + 1}"
                    _log.info("%s: validation loss %.3f", done, validation)

            def train(data: Simulations, *, last: bool, renew: bool = False) -> None:
                epochs = self.settings.epochs(self.kind, last)
                progress.reset(inner, total=epochs, loss="")
                if renew or self.box is not None:
                    self.box = data.later_box(first)
                    data = data.within(self.box)
                self.losses.append(self.trainer.fit(data, epochs, report, renew=renew, last=last))

            data = None if earlier is None else self._earlier(earlier)
            first = 0 if data is None else int(data.round.max()) + 1
            # A box before the third round would exclude parameters that the first estimate missed.
            # Later rounds simulate where the new network lacks simulations.
            takeover = first + max(rounds // 2, 2)
            if data is not None:
                problem.check_seeded(data.theta[:4], int(self.rng.integers(2**31)))
                problem.check_same(data.theta[-50:], data.statistic[-50:], self.rng)
                self._prepare(data)
                train(data, last=True)  # the release may be another than that of the earlier result
            for number in range(first, first + rounds):
                if data is None:
                    theta = problem.prior.draw(simulations, self.rng)
                    problem.check_seeded(theta[:4], int(self.rng.integers(2**31)))
                    data = self._simulated(theta, number)
                    self._prepare(data)
                else:
                    theta = propose(self, data, simulations)
                    data = data.joined(self._simulated(theta, number))
                train(data, renew=number == takeover, last=number == first + rounds - 1)
                progress.advance(outer)
        assert data is not None
        return data

    def _prepare(self, data: Simulations) -> None:
        """Make the noise, which may depend on the first statistics, and the trainer."""
        from pymc_dp.neural.training import Trainer

        noise = self._make_noise(data.statistic, self.rng)
        self.trainer = Trainer(self.kind, noise, self.settings, self.rng, self._device)
        if self.kind == "likelihood":
            self._warn_of_steps(noise, data.statistic)

    def _warn_of_steps(self, noise: Noise, statistic: np.ndarray) -> None:
        """Warn of releases of few values, which a smooth density cannot follow."""
        spread = noise.draw(statistic).reshape(-1, noise.size).std(axis=0)
        for channel, place in spans(self.problem.channels):
            if np.any(noise.spacing[place] > 1.25 * spread[place]):
                _log.warning(
                    "%r takes few values (steps of %g, standard deviation %.2g), and SPLE's smooth "
                    "density blurs them: use dp.neural.sppe",
                    channel.name, channel.mechanism.spacing, spread[place].min(),
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
        log_prior = self.problem.prior.logp(data.theta)
        if not np.allclose(log_prior, data.log_prior, rtol=1e-6, atol=1e-6):
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
        """Return the result as a tree."""
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
        both = zip(*self.losses, strict=True)  # by epoch; rounds differ in their numbers of epochs
        loss, held = ([*zip_longest(*rounds, fillvalue=np.nan)] for rounds in both)
        dims = ("epoch", "round")
        training = xr.Dataset({"loss": (dims, loss), "validation_loss": (dims, held)})
        tree["training"] = DataTree(training.transpose("round", "epoch"))
        wide = {"theta": ("simulation", "parameter"), "statistic": ("simulation", "entry")}
        simulations = {name: (wide.get(name, "simulation"), v) for name, v in vars(data).items()}
        tree["simulations"] = DataTree(xr.Dataset(simulations, attrs={"parameters": prior.names}))
        return tree


def posterior_proposal(run: Run, data: Simulations, count: int) -> np.ndarray:
    """Draw parameters from the posterior under the network of posteriors."""
    problem, density = run.problem, run.trainer.density
    drawn, _ = supported_draws(problem.prior, density, problem.observed[None], count, run.box)
    return drawn[:, 0]


def supported_draws(
    prior: Prior, density: Density, condition: np.ndarray, count: int, box: Box | None = None
) -> tuple[np.ndarray, float]:
    """Draw for each condition, in the prior's support and the box; also the share drawn elsewhere.

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
    for channel, place in spans(channels):
        outside = (value[place] < low[place]) | (value[place] > high[place])
        if not outside.any():
            continue
        j = int(np.argmax(outside))
        index = ", ".join(str(int(i)) for i in np.unravel_index(j, channel.shape))
        _log.warning(
            "%r: the released value%s is %.4g, and all simulated ones lie between %.4g and %.4g%s: "
            "the networks extrapolate. Check the simulator and the statistic, or use a wider prior",
            channel.name,
            f" at [{index}]" if index else "",
            value[place][j],
            low[place][j],
            high[place][j],
            f" ({outside.sum()} of {channel.size} values are out of range)"
            if outside.sum() > 1
            else "",
        )


def likelihood_proposal(run: Run, data: Simulations, count: int) -> np.ndarray:
    """Draw parameters from the posterior under the likelihood network."""
    problem, rng = run.problem, run.rng

    def log_density(theta: np.ndarray) -> np.ndarray:
        level = np.array(problem.prior.logp(theta))
        inside = np.isfinite(level)
        if run.box is not None:
            inside &= run.box.holds(theta)
            level[~inside] = -np.inf
        releases = np.broadcast_to(problem.observed, (inside.sum(), len(problem.observed)))
        level[inside] += run.trainer.density.log_prob(releases, theta[inside])
        return np.where(np.isfinite(level), level, -np.inf)

    # Walkers start at simulated parameters, resampled by their density.
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


def check_counts(**counts: Any) -> None:
    """Refuse counts that are not whole numbers of at least 1."""
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
