"""A conditional density: a network in standard units, used in those of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from nflows.transforms.permutations import RandomPermutation
from sbi.neural_nets import posterior_nn
from torch import Tensor, nn

from pymc_dp.neural.settings import Training
from pymc_dp.neural.standard import Standard


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
        with torch.no_grad():
            drawn = self.network.sample((draws,), self.given(condition))
        return self.target.back(drawn.cpu().numpy().astype("float64"))

    def log_prob(self, target: np.ndarray, condition: np.ndarray) -> np.ndarray:
        """Log density of each target given its condition, or the only one; (count,)."""
        given = np.broadcast_to(condition, (len(target), condition.shape[1]))
        place = self._tensor(self.target.forward(target))
        with torch.no_grad():
            level = self.network.log_prob(place[None], self.given(given))[0]
        return level.cpu().numpy().astype("float64") + self.target.log_slope(target).sum(-1)

    def value_and_gradient(
        self, target: np.ndarray, condition: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Log density at two vectors, and its gradient in the condition."""
        given = self.given(condition[None]).requires_grad_()
        place = self._tensor(self.target.forward(target))[None, None]
        try:
            value = self.network.log_prob(place, given)[0, 0]
        except ValueError:
            # A diverging trajectory: sbi's mixtures refuse what overflows their weights.
            return -np.inf, np.zeros_like(condition)
        [gradient] = torch.autograd.grad(value, given)
        slope = np.exp(self.condition.log_slope(condition))
        return (
            value.item() + float(self.target.log_slope(target).sum()),
            gradient[0].cpu().numpy().astype("float64") * slope,
        )

    def given(self, condition: np.ndarray) -> Tensor:
        """Return conditions as the network takes them."""
        return self._tensor(self.condition.forward(condition))

    def _tensor(self, standard: np.ndarray) -> Tensor:
        device = next(self.network.parameters()).device
        return torch.as_tensor(standard, dtype=torch.float32, device=device)


def build_density(
    target: np.ndarray, condition: np.ndarray, training: Training, device: str = "cpu"
) -> Density:
    """Build sbi's flow for the density of target given condition, in the units of these values.

    For a single variable it is a mixture of Normals: an affine flow would be one Normal, and the
    tails of a spline are too heavy.
    """
    estimator = "mdn" if target.shape[1] == 1 else training.estimator
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
