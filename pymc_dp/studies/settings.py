"""Settings and plan of a study, as sent to its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.sampling import NEURAL
from pymc_dp.studies.summaries import Interval

Cell = dict[str, Any]
Truth = Mapping[str, Any] | Callable[[Cell], Mapping[str, Any]] | None


@dataclass(frozen=True)
class Settings:
    """Settings of all replicates of a study; see `coverage`."""

    var_names: tuple[str, ...] | None
    prob: float
    interval: Interval
    draws: int
    tune: int
    chains: int
    thin: int | None
    min_ess: float | None
    use_compiled: bool | None
    sampler: dict[str, Any]

    def __post_init__(self) -> None:
        """Validate the settings."""
        if not 0.0 < self.prob < 1.0:
            raise ValueError(f"prob={self.prob!r}: the probability of an interval, 0.95 say")
        if self.interval not in ("hdi", "eti"):
            raise ValueError(f"interval={self.interval!r}: write 'hdi' or 'eti'")
        for name in ("draws", "tune", "chains", "thin"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | np.integer) or value < 1):
                raise ValueError(f"{name}={value!r}: a whole number, at least 1")
        if self.min_ess is not None and not self.min_ess > 0:
            raise ValueError(f"min_ess={self.min_ess!r}: a positive number of effective draws")
        for name in ("draws", "tune", "chains", "random_seed", "model", "var_names"):
            if name in self.sampler:
                raise ValueError(f"sampler: {name!r} is an argument of the study itself")
        if self.sampler.get("method") in NEURAL:
            raise ValueError(
                f"sampler: method={self.sampler['method']!r} trains networks, for every replicate "
                f"anew; dp.neural.amortise trains once, and dp.neural.calibration checks it"
            )
        kernels = {"thin": self.thin, "min_ess": self.min_ess, "compiled": self.use_compiled}
        asked = [name for name, value in kernels.items() if value]
        if asked and (self.sampler or self.use_compiled is False):
            raise ValueError(f"{asked[0]}= is for compiled kernels; sampler= calls dp.sample")
        if self.draws * self.chains < 100:
            raise ValueError(f"draws={self.draws}: too few for an interval; write at least 100")

    @property
    def size(self) -> dict[str, int]:
        """Draws, tuning steps and chains, as arguments of samplers."""
        return {"draws": self.draws, "tune": self.tune, "chains": self.chains}


@dataclass(frozen=True)
class StudyPlan:
    """The functions and settings of a study, as sent to its worker processes."""

    build: Callable[..., pm.Model]
    truth: Truth
    simulate: Callable[..., Any] | None
    settings: Settings
