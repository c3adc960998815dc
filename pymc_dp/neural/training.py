r"""Training of the density estimators on the nested loss.

sbi builds the flows; the loop is our own. A simulation is stored with its confidential statistic,
and every minibatch releases it anew, M times, so that the simulator runs once for each simulation
and the noise never repeats.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR

from pymc_dp.neural.density import Density, build_density, network_log_prob
from pymc_dp.neural.noise import Noise
from pymc_dp.neural.settings import Training
from pymc_dp.neural.standard import Standard

Kind = Literal["posterior", "likelihood"]
LogDensity = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Simulations:
    """Simulations of all rounds, kept with their confidential statistics.

    Attributes
    ----------
    theta : ndarray of shape (count, width)
        Unconstrained parameters.
    statistic : ndarray of shape (count, size)
    log_prior : ndarray of shape (count,)
        Prior log density of the unconstrained parameters.
    round : ndarray of shape (count,)
        The round that drew them, from 0: the prior's.
    validation : ndarray of bool, shape (count,)
        Kept apart for early stopping.
    """

    theta: np.ndarray
    statistic: np.ndarray
    log_prior: np.ndarray
    round: np.ndarray
    validation: np.ndarray

    def joined(self, other: Simulations) -> Simulations:
        """Append further simulations."""
        return Simulations(
            *(np.concatenate([a, vars(other)[name]]) for name, a in vars(self).items())
        )

    def later_box(self, first: int) -> Box:
        """Return a box around the parameters of the later half of the rounds from `first` on.

        Between the quantiles 0.001 and 0.999, and a quarter wider on every side.
        """
        later = self.round > (first + self.round.max()) / 2
        return Box.around(*np.quantile(self.theta[later], [0.001, 0.999], axis=0))

    def within(self, box: Box) -> Simulations:
        r"""Keep the simulations whose parameters are in a box B.

        The likelihood's loss has the same minimiser; those of the posterior have
        :math:`p(\theta \mid z) 1_B(\theta)`, normalised.
        """
        inside = box.holds(self.theta)
        return Simulations(*(a[inside] for a in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Box:
    """A box of unconstrained parameters, from low to high, (width,) each."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, low: np.ndarray, high: np.ndarray) -> Box:
        """Return a box that is a quarter wider on every side."""
        margin = 0.25 * (high - low)
        return cls(low - margin, high + margin)

    def border(self, theta: np.ndarray) -> float:
        """Return the share of parameters (count, width) outside the range given to `around`."""
        margin = (self.high - self.low) / 6  # a quarter of the range
        return 1.0 - float(Box(self.low + margin, self.high - margin).holds(theta).mean())

    def holds(self, theta: np.ndarray) -> np.ndarray:
        """Whether parameters (..., width) are in it; they may be symbolic."""
        return ((theta >= self.low) & (theta <= self.high)).all(axis=-1)


def direct_loss(log_density: LogDensity, target: Tensor, condition: Tensor) -> Tensor:
    r"""Loss of each release, :math:`-\log q(\text{target} \mid \text{condition})`.

    Parameters
    ----------
    log_density : callable
        ``(target (n, p), condition (n, d)) -> (n,)``.
    target, condition : Tensor
        Of shapes (B, p) and (B, M, d) for a posterior, (B, M, d) and (B, p) for a likelihood: the
        one without releases is repeated.

    Returns
    -------
    Tensor of shape (B, M)
    """
    if target.ndim == 2:
        rows = condition.shape[:2]
        target = target[:, None].expand(*rows, -1)
    else:
        rows = target.shape[:2]
        condition = condition[:, None].expand(*rows, -1)
    flat = log_density(
        target.reshape(-1, target.shape[-1]), condition.reshape(-1, condition.shape[-1])
    )
    return -flat.reshape(rows)


def atomic_loss(
    log_density: LogDensity, theta: Tensor, released: Tensor, log_prior: Tensor, atoms: int
) -> Tensor:
    r"""Loss of each release under proposals other than the prior.

    Which of a set of parameters, the atoms, has led to the release? With
    :math:`r(\theta) = q(\theta \mid z) / p(\theta)` the loss is
    :math:`-\log r(\theta_i) / \sum_a r(\theta_a)` (Greenberg, Nonnenmacher & Macke, 2019): whatever
    the proposals are, :math:`q = p(\theta \mid z)` minimises it if the atoms are exchangeable. So
    they belong to distinct *simulations*: the M releases of a simulation, taken for M parameters,
    would put the true parameter among the others. Two simulations with equal parameters are
    two atoms; dropping one would spoil the exchangeability again.

    Parameters
    ----------
    log_density : callable
        ``(theta (n, p), released (n, d)) -> (n,)``.
    theta : Tensor of shape (B, p)
        Parameters of the minibatch, in random order, one row for each simulation.
    released : Tensor of shape (B, M, d)
    log_prior : Tensor of shape (B,)
    atoms : int
        Number of atoms, the true parameter included; at most B are used.

    Returns
    -------
    Tensor of shape (B, M)
    """
    batch, draws, size = released.shape
    atoms = min(atoms, batch)
    # The order is random, so that the next rows are a random choice without replacement.
    chosen = (torch.arange(batch)[:, None] + torch.arange(atoms)).remainder(batch)
    chosen = chosen.to(theta.device)
    candidates = theta[chosen][:, None].expand(batch, draws, atoms, -1)
    releases = released[:, :, None].expand(batch, draws, atoms, size)
    log_q = log_density(candidates.reshape(-1, theta.shape[1]), releases.reshape(-1, size))
    log_ratio = log_q.reshape(batch, draws, atoms) - log_prior[chosen][:, None]
    return torch.logsumexp(log_ratio, dim=-1) - log_ratio[..., 0]


class Trainer:
    """Trains one network over the rounds.

    Parameters
    ----------
    kind : {"posterior", "likelihood"}
        q(theta | z), or q(z | theta).
    noise : Noise
        Releases statistics.
    training : Training
        Settings.
    rng : numpy.random.Generator
        Order of the minibatches, and the values between whole numbers.
    device : str
        Where torch computes.
    """

    def __init__(
        self, kind: Kind, noise: Noise, training: Training, rng: np.random.Generator, device: str
    ):
        self.kind, self.noise, self.training = kind, noise, training
        self._rng, self.device = rng, device
        self.density: Density  # from the first call of fit on

    def fit(
        self,
        data: Simulations,
        epochs: int,
        report: Callable[[int, float, float], None] = lambda *_: None,
        *,
        renew: bool = False,
        last: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Train on simulations, and keep the weights of the least validation loss.

        Parameters
        ----------
        data : Simulations
        epochs : int
            Epochs at most.
        report : callable
            Called with the epoch and both losses.
        renew : bool, default False
            Begin with a new network, in the units of these simulations.
        last : bool, default False
            Take all the epochs, along which the learning rate falls to zero on half a cosine: a
            constant one leaves the optimiser's noise in the weights.

        Returns
        -------
        training, validation : ndarray of shape (epochs,)
            Mean loss of a release in each epoch.
        """
        learning = np.flatnonzero(~data.validation)
        # Shuffled: the atomic loss compares neighbours as exchangeable, and rounds are not.
        held = self._rng.permutation(np.flatnonzero(data.validation))
        if renew or not hasattr(self, "density"):
            z = self.release(data.statistic[learning])[:, 0]
            theta = data.theta[learning]
            pair = (theta, z) if self.kind == "posterior" else (z, theta)
            self.density = build_density(*pair, self.training, self.device)
        network = copy.deepcopy(self.density.network)
        optimizer = torch.optim.Adam(
            network.parameters(),
            lr=self.training.learning_rate,
            weight_decay=self.training.decay(self.kind),
            fused=True,
        )
        steps = epochs * self.training.epoch_steps
        schedule = CosineAnnealingLR(optimizer, steps) if last else ConstantLR(optimizer, 1.0)
        average = copy.deepcopy(network)
        known = self.release(data.statistic[held])
        best, state, waited = np.inf, copy.deepcopy(average.state_dict()), 0
        batches, history, step = self._batches(learning), [], 0
        for epoch in range(epochs):
            network.train()
            total, rows = 0.0, 0
            for batch in islice(batches, self.training.epoch_steps):
                optimizer.zero_grad()
                loss = self._loss(network, data, batch, self.release(data.statistic[batch])).mean()
                if not torch.isfinite(loss):
                    raise RuntimeError(
                        f"the training loss is {loss.item()} in epoch {epoch + 1}: lower the "
                        f"learning_rate in dp.neural.Training"
                    )
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                step += 1
                _follow(average, network, min(self.training.averaging, step / (step + 10)))
                total, rows = total + float(loss.detach()) * len(batch), rows + len(batch)
            average.eval()
            each = self._validate(average, data, held, known)
            validation = float(each.mean())
            if not np.isfinite(validation):
                raise RuntimeError(_bad_validation(data, held, each, validation, epoch))
            history.append((total / rows, validation))
            report(epoch, *history[-1])
            # Gains below the noise of the loss are no reason to go on.
            if validation < best - (0.0 if last else self.training.tolerance):
                best, state, waited = validation, copy.deepcopy(average.state_dict()), 0
            else:
                waited += 1
                if waited >= self.training.patience and not last:
                    break
        average.load_state_dict(state)
        average.eval()
        self.density = replace(self.density, network=average)
        losses = np.array(history)
        return losses[:, 0], losses[:, 1]

    def release(self, statistic: np.ndarray) -> np.ndarray:
        """Release statistics anew; for a likelihood, whole numbers are spread over their step."""
        released = self.noise.draw(statistic)
        if self.kind == "likelihood" and self.noise.spacing.any():
            released += self.noise.spacing * self._rng.uniform(-0.5, 0.5, released.shape)
        return released

    def _batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        """Yield minibatches without end, in a new order at each pass."""
        # A last batch of one simulation would have no other atoms.
        parts = max(len(indices) // self.training.batch_size, 1)
        while True:
            yield from np.array_split(self._rng.permutation(indices), parts)

    def _loss(self, network, data: Simulations, batch: np.ndarray, released: np.ndarray) -> Tensor:
        log_density = partial(network_log_prob, network)
        theta = data.theta[batch]
        if self.kind == "likelihood":
            slope = self.density.target.log_slope(released).sum(-1)
            z, theta = self.standard(released, theta)
            return direct_loss(log_density, z, theta) - self.density.tensor(slope)
        # The density of the parameters in standard units is that of the model over this slope.
        slope = self.density.target.log_slope(theta).sum(-1)
        theta, z = self.standard(theta, released)
        if not data.round.any():
            return direct_loss(log_density, theta, z) - self.density.tensor(slope)[:, None]
        log_prior = self.density.tensor(data.log_prior[batch] - slope)
        loss = atomic_loss(log_density, theta, z, log_prior, self.training.atoms)
        # Draws from the prior need no correction, and train the network far from the release.
        first = torch.as_tensor(np.flatnonzero(data.round[batch] == 0), device=self.device)
        if len(first):
            direct = direct_loss(log_density, theta[first], z[first])
            direct = direct - self.density.tensor(slope)[first, None]
            loss = loss.index_add(0, first, direct)
        return loss

    def standard(self, target: np.ndarray, condition: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return targets and conditions as the network takes them."""
        density = self.density
        return density.tensor(density.target.forward(target)), density.network_condition(condition)

    def _validate(
        self, network, data: Simulations, held: np.ndarray, released: np.ndarray
    ) -> np.ndarray:
        """Return the mean loss of each validation simulation."""
        with torch.no_grad():
            size = self.training.batch_size
            parts = np.array_split(np.arange(len(held)), max(len(held) // size, 1))
            losses = [self._loss(network, data, held[p], released[p]).mean(1) for p in parts]
        return torch.cat(losses).cpu().numpy().astype("float64")


def _bad_validation(
    data: Simulations, held: np.ndarray, each: np.ndarray, validation: float, epoch: int
) -> str:
    """Name the most extreme validation simulation whose loss is not finite."""
    units = Standard.of(data.statistic)
    distance = np.abs(units.forward(data.statistic[held])).max(axis=1)
    worst = held[np.argmax(np.where(np.isfinite(each), -1.0, distance))]
    statistic = np.array2string(data.statistic[worst], precision=4, threshold=8)
    return (
        f"the validation loss is {validation} in epoch {epoch + 1}; the worst simulation has the "
        f"statistic {statistic}: release a transform of it, its logarithm say, or use a prior that "
        f"leaves such values out"
    )


def _follow(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Move an exponential average of the weights: it removes most of the optimiser's noise."""
    with torch.no_grad():
        targets = list(average.parameters())
        torch._foreach_lerp_(targets, list(network.parameters()), 1.0 - decay)
