"""The expected cost of a route: shapes of the model, times constants that were measured.

A cost has the name of each part that takes time, and how many units of it a model has, such as
``{"NUTS": 1, "NUTS, parameter": 12}``. ``python3 run.py bench routes`` fits the seconds that a unit
takes, and writes them to `costs.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

COSTS = Path(__file__).with_name("costs.json")
_READ = json.loads(COSTS.read_text(encoding="utf-8"))
COMPILING: dict[str, float] = _READ.pop("compiling")  # CPU seconds by name of the route
CONSTANTS: dict[str, float] = _READ
_NOT_MEASURED = 1e-5  # seconds, about those of an entry: for costs that other packages name


def expected_rate(cost: Mapping[str, float]) -> float:
    """Return the expected effective draws of the slowest parameter in a CPU second."""
    return 1.0 / sum(CONSTANTS.get(name, _NOT_MEASURED) * x for name, x in cost.items())
