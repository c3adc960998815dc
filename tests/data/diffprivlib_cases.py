"""Write what mechanism objects of diffprivlib hold and draw, as JSON, to standard output.

`diffprivlib.json` was made by diffprivlib 0.6.6. It does not import beside the scikit-learn of this
package, so that it needs an environment of its own, with "diffprivlib==0.6.6" "scikit-learn<1.6":

    python tests/data/diffprivlib_cases.py > tests/data/diffprivlib.json
"""

import json
import sys

import diffprivlib
import numpy as np
from diffprivlib import mechanisms, tools

DRAWS, TOOL_DRAWS = 20_000, 3_000
LEVELS = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
LOSS, LABELS = ("epsilon", "delta", "sensitivity"), ("value0", "value1")
ATTRIBUTES = (*LOSS, "lower", "upper", "gamma", *LABELS, "_scale")

CASES = [
    ("Laplace", {"epsilon": 0.5, "sensitivity": 2.0}, 3.0),
    ("Laplace", {"epsilon": 0.5, "delta": 0.3, "sensitivity": 2.0}, 3.0),
    ("LaplaceTruncated", {"epsilon": 0.7, "sensitivity": 1, "lower": 0, "upper": 4}, 1.0),
    ("Geometric", {"epsilon": 0.4, "sensitivity": 1}, 7),
    ("Geometric", {"epsilon": 1.5, "sensitivity": 3}, 7),
    ("GeometricTruncated", {"epsilon": 0.4, "sensitivity": 1, "lower": 0, "upper": 9}, 2),
    ("Gaussian", {"epsilon": 0.8, "delta": 1e-3, "sensitivity": 1.5}, -2.0),
    ("GaussianAnalytic", {"epsilon": 0.8, "delta": 1e-3, "sensitivity": 1.5}, -2.0),
    ("GaussianAnalytic", {"epsilon": 3.0, "delta": 0.2, "sensitivity": 1.5}, -2.0),
    ("GaussianDiscrete", {"epsilon": 0.8, "delta": 1e-3, "sensitivity": 1}, 5),
    ("LaplaceFolded", {"epsilon": 0.7, "sensitivity": 1, "lower": 0, "upper": 4}, 1.0),
    ("LaplaceBoundedDomain", {"epsilon": 0.7, "sensitivity": 1, "lower": 0, "upper": 4}, 1.0),
    ("Uniform", {"delta": 0.1, "sensitivity": 1.5}, 1.0),
    ("Staircase", {"epsilon": 1.2, "sensitivity": 1.5}, 1.0),
    ("Snapping", {"epsilon": 0.7, "sensitivity": 1.0, "lower": 0, "upper": 9}, 2.5),
    ("Binary", {"epsilon": 1.0, "value0": "no", "value1": "yes"}, "yes"),
]

RECORDS = [0, 1, 1, 3, 4, 7, 9, 12]
TOOLS = [
    ("mean", {"epsilon": 1.0, "bounds": (0, 10)}, 4.375),
    ("var", {"epsilon": 1.0, "bounds": (0, 10)}, 12.734375),
    ("sum", {"epsilon": 1.0, "bounds": (0, 10)}, 35.0),
    ("sum", {"epsilon": 1.0, "bounds": (0, 10), "dtype": int}, 35),
    ("count_nonzero", {"epsilon": 0.5}, 7),
    ("histogram", {"epsilon": 0.5, "bins": 2, "range": (0, 14)}, 5),
]


def tool(name, arguments, statistic):
    """Return the distribution function of what a function returns, of its first bin."""
    rng, function = np.random.RandomState(1), getattr(tools, name)
    draws = [function(np.array(RECORDS), random_state=rng, **arguments) for _ in range(TOOL_DRAWS)]
    draws = np.sort([float(np.ravel(z[0])[0] if name == "histogram" else z) for z in draws])
    at = sorted({float(draws[int(level * TOOL_DRAWS)]) for level in LEVELS})
    kept = {k: v for k, v in arguments.items() if k in ("epsilon", "bounds")}
    return {
        "tool": name,
        "arguments": kept | ({"dtype": "int"} if "dtype" in arguments else {}),
        "statistic": statistic,
        "draws": TOOL_DRAWS,
        "at": at,
        "share_up_to": [float(np.mean(draws <= x)) for x in at],
    }


def case(name, arguments, statistic):
    """Return the attributes of a mechanism, and the distribution function of its draws."""
    mechanism = getattr(mechanisms, name)(**arguments, random_state=1)
    draws = [mechanism.randomise(statistic) for _ in range(DRAWS)]
    if name == "Binary":
        draws = [float(draw == mechanism.value1) for draw in draws]
        statistic = float(statistic == mechanism.value1)
    draws = np.sort(np.asarray(draws, dtype=float))
    at = sorted({float(draws[int(level * DRAWS)]) for level in LEVELS})
    return {
        "class": name,
        "attributes": {a: getattr(mechanism, a) for a in ATTRIBUTES if hasattr(mechanism, a)},
        "statistic": statistic,
        "draws": DRAWS,
        "at": at,
        "share_up_to": [float(np.mean(draws <= x)) for x in at],
    }


if __name__ == "__main__":
    made = {"diffprivlib": diffprivlib.__version__, "cases": [case(*c) for c in CASES]}
    made["tools"] = [tool(*t) for t in TOOLS]
    sys.stdout.write(json.dumps(made, indent=1, default=float) + "\n")
