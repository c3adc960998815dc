"""A conditional density: a network in standard units, used in those of the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from nflows.transforms.permutations import RandomPermutation
from sbi.neural_nets import posterior_nn
from torch import Tensor, nn

from pymc_dp.neural.settings import Training
from pymc_dp.neural.standard import Standard

_log = logging.getLogger("pymc.dp")


@dataclass(frozen=True, eq=False)
class Density:
    r"""A density :math:`q(\text{target} \mid \text{condition})`.

    Attributes
    ----------
    estimator : str
        What the network is: "maf", "nsf" or, for a single variable, "mdn".
    network : torch.nn.Module
        Of sbi; its variables and conditions are in standard units.
    target, condition : Standard
        The units.
    """

    estimator: str
    network: nn.Module
    target: Standard
    condition: Standard

    def sample(self, condition: np.ndarray, draws: int) -> np.ndarray:
        """Draw for each condition; (draws, count, width)."""
        with torch.no_grad(), single_precision():
            drawn = self.network.sample((draws,), self.network_condition(condition))
        return self.target.back(drawn.cpu().numpy().astype("float64"))

    def log_prob(self, target: np.ndarray, condition: np.ndarray) -> np.ndarray:
        """Log density of each target given its condition, or the only one; (count,)."""
        conditions = np.broadcast_to(condition, (len(target), condition.shape[1]))
        place = self.tensor(self.target.forward(target))
        with torch.no_grad():
            level = network_log_prob(self.network, place, self.network_condition(conditions))
        return level.cpu().numpy().astype("float64") + self.target.log_slope(target).sum(-1)

    def value_and_gradient(
        self, target: np.ndarray, condition: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Log density at two vectors, and its gradient in the condition."""
        inputs = self.network_condition(condition[None]).requires_grad_()
        place = self.tensor(self.target.forward(target))[None]
        value = network_log_prob(self.network, place, inputs)[0]
        if torch.isnan(value):  # a diverging trajectory
            return -np.inf, np.zeros_like(condition)
        [gradient] = torch.autograd.grad(value, inputs)
        slope = np.exp(self.condition.log_slope(condition))
        return (
            value.item() + float(self.target.log_slope(target).sum()),
            gradient[0].cpu().numpy().astype("float64") * slope,
        )

    def network_condition(self, condition: np.ndarray) -> Tensor:
        """Return conditions as the network takes them."""
        return self.tensor(self.condition.forward(condition))

    def tensor(self, standard: np.ndarray) -> Tensor:
        """Put an array where the network is."""
        device = next(self.network.parameters()).device
        return torch.as_tensor(standard, dtype=torch.float32, device=device)


@contextmanager
def single_precision() -> Iterator[None]:
    """Make nflows create tensors of the networks' type, whatever the user's default is."""
    known = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(known)


def network_log_prob(network: nn.Module, target: Tensor, condition: Tensor) -> Tensor:
    """Log density of each target given its condition; (count,).

    It is NaN where sbi's mixtures refuse values that overflow their weights.
    """
    try:
        return network.log_prob(target[None], condition)[0]
    except ValueError:
        return torch.full((len(target),), torch.nan, device=target.device)


def build_density(
    target: np.ndarray, condition: np.ndarray, training: Training, device: str = "cpu"
) -> Density:
    """Build sbi's flow for the density of target given condition, in the units of these values.

    For a single variable it is a mixture of Normals: an affine flow would be one Normal, and the
    tails of a spline are too heavy.
    """
    estimator = "mdn" if target.shape[1] == 1 else training.estimator
    if estimator == "mdn" and training.estimator == "nsf":
        _log.info("A mixture of Normals in the place of 'nsf': its splines need two variables")
    builder = posterior_nn(
        estimator,
        z_score_theta="none",
        z_score_x="none",
        hidden_features=training.hidden_features,
        num_transforms=training.num_transforms,
    )
    units = Standard.of(target), Standard.of(condition)
    network = builder(
        *(
            torch.as_tensor(s.forward(v), dtype=torch.float32)
            for s, v in zip(units, (target, condition), strict=True)
        )
    )
    # The first variable of a masked transform sees no condition. nflows permutes at random: then
    # one of two variables stays first throughout, and unconditional, in one network of sixteen.
    for module in network.modules():
        if isinstance(module, RandomPermutation):
            module._permutation.copy_(torch.arange(target.shape[1]).flip(0))
    return Density(estimator, network.to(device), *units)
