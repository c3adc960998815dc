"""The exact posteriors to compare with, by the file that holds them; and quadrature for others."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def references(name: str) -> Any:
    """Return what `tests/data/NAME.json` says: its list of cases, or all where it has none."""
    found = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    return found.get("cases", found)


_rule = cache(np.polynomial.legendre.leggauss)  # an eigenvalue problem


def legendre(cuts: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights, as many on each piece between cuts."""
    x, w = _rule(size)
    cuts = np.unique(cuts)
    half = np.diff(cuts)[:, None] / 2
    return (cuts[:-1, None] + half * (1 + x)).ravel(), (half * w).ravel()
