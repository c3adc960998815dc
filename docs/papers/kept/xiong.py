"""Make xiong.json: `python docs/papers/kept/xiong.py`, a minute or two.

The exact posterior of the epidemic of `docs/examples/sir.py`, by importance sampling with
a particle filter.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import sir


def main():
    """Sample and write."""
    study = sir.measles()
    found = sir.particles(study, np.random.default_rng(1), draws=600)
    mean = found.weights @ found.values
    kept = {
        "about": "made by xiong.py; orders: log beta, log gamma",
        "released": study.released.tolist(),
        "ess": found.ess,
        "mean": mean.tolist(),
        "sd": np.sqrt(found.weights @ (found.values - mean) ** 2).tolist(),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
