"""What routes are expected to cost: shapes of a model, times constants that were measured.

A cost names what takes time, and how much of it a model has: ``{"NUTS": 1, "NUTS, parameter": 12}``
say. ``python3 run.py bench routes`` fits what a unit of each costs and writes it to `costs.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

COSTS = Path(__file__).with_name("costs.json")
_READ = json.loads(COSTS.read_text(encoding="utf-8"))
COMPILING: dict[str, float] = _READ.pop("compiling")  # CPU seconds of a route
CONSTANTS: dict[str, float] = _READ
_NOT_MEASURED = 1e-5  # seconds, about those of an entry: for what others add


def expected_rate(cost: Mapping[str, float]) -> float:
    """Return the effective draws of the slowest parameter to expect of a CPU second."""
    return 1.0 / sum(CONSTANTS.get(name, _NOT_MEASURED) * x for name, x in cost.items())
