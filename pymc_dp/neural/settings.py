"""Settings of the training, which need neither torch nor sbi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_AT_LEAST = {
    0: ("weight_decay", "tolerance"),
    1: ("hidden_features", "epoch_steps", "patience", "max_epochs", "last_epochs"),
    # With a single transform, one of the variables would not depend on the release.
    2: ("num_transforms", "batch_size", "atoms"),
}


@dataclass(frozen=True)
class Training:
    """Settings of the networks and of their training.

    Parameters
    ----------
    estimator : {"maf", "nsf"}
        Masked autoregressive flow, or neural spline flow: the one of the paper, a few times slower.
    hidden_features, num_transforms : int
        Width of its layers, and how many transforms are chained, at least two.
    batch_size : int
        Simulations in a minibatch, each with its noise draws.
    learning_rate : float
        Of Adam. In the last round it falls to zero along half a cosine.
    weight_decay : float, optional
        Of Adam: by default 0.002, and 0.0001 for a likelihood, which learns from the releases, new
        at every pass, where a posterior learns from the parameters, always the same.
    atoms : int
        Parameters that the posterior's loss compares, from the second round on.
    validation : float
        Share of the simulations kept apart for early stopping.
    epoch_steps : int
        Minibatches of an epoch. As the noise is new at every pass, an epoch may be several passes
        over few simulations, or a part of one over many.
    patience : int
        Epochs without a better validation loss after which a round stops, the last one excepted.
    max_epochs : int
        Epochs of a round at most. The network goes on from that of the round before, unless it is
        a new one.
    last_epochs : int, optional
        Epochs of the last round, whose network is the result: by default 60, and 200 for a
        likelihood, which takes more and cheaper ones. The only round of `amortise` is the last one.
    tolerance : float
        The least fall of the validation loss that counts for it.
    averaging : float
        Decay of the exponential average of the weights, for each step; 0 takes the last ones.

    Raises
    ------
    ValueError
        Naming the setting that is out of its range.

    References
    ----------
    .. [1] G. Papamakarios, T. Pavlakou, I. Murray (2017). Masked autoregressive flow for density
       estimation. NeurIPS 30.
    .. [2] C. Durkan, A. Bekasov, I. Murray, G. Papamakarios (2019). Neural spline flows.
       NeurIPS 32.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> settings = dp.neural.Training(estimator="nsf", max_epochs=50)
    >>> settings.estimator, settings.hidden_features
    ('nsf', 50)
    """

    estimator: Literal["maf", "nsf"] = "maf"
    hidden_features: int = 50
    num_transforms: int = 5
    batch_size: int = 100
    learning_rate: float = 2e-3
    weight_decay: float | None = None
    atoms: int = 5
    validation: float = 0.1
    epoch_steps: int = 50
    patience: int = 10
    max_epochs: int = 15
    last_epochs: int | None = None
    tolerance: float = 1e-3
    averaging: float = 0.99

    def __post_init__(self):
        """Refuse settings that cannot work."""
        if self.estimator not in ("maf", "nsf"):
            raise ValueError(f"estimator={self.estimator!r}: write 'maf' or 'nsf'")
        for least, names in _AT_LEAST.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not value >= least:
                    raise ValueError(f"{name}={value}: it must be at least {least}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate}: it must be positive")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation={self.validation}: it is a share between 0 and 1")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging={self.averaging}: it must be at least 0, below 1")

    def epochs(self, kind: Literal["posterior", "likelihood"], last: bool) -> int:
        """Return the most epochs of a round."""
        if not last:
            return self.max_epochs
        if self.last_epochs is not None:
            return self.last_epochs
        return 200 if kind == "likelihood" else 60

    def decay(self, kind: Literal["posterior", "likelihood"]) -> float:
        """Return the weight decay."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 1e-4 if kind == "likelihood" else 2e-3
