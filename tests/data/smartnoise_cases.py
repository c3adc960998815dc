"""Write what a reader of SmartNoise SQL says and answers, as JSON, to standard output.

`smartnoise.json` was made by smartnoise-sql 1.0.10, which needs an environment of its own:

    python tests/data/smartnoise_cases.py > tests/data/smartnoise.json
"""

import json
import sys
from importlib.metadata import version

import numpy as np
import pandas as pd
from snsql import Privacy, from_df
from snsql.sql.privacy import Mechanism, Stat

RUNS, LEVELS = 2000, (0.02, 0.2, 0.5, 0.8, 0.98)
MEMBERS = {"a": 16, "b": 9, "c": 2}
PEOPLE = pd.DataFrame(
    {"pid": range(27), "g": [g for g, n in MEMBERS.items() for _ in range(n)], "age": 30}
)
COLUMNS = {
    "pid": {"type": "int", "private_id": True},
    "g": {"type": "string"},
    "age": {"type": "int", "lower": 0, "upper": 50},
}
OPEN, CLAMPED = {"censor_dims": False}, {"censor_dims": False, "clamp_counts": True}
# The options of the table, whether the noise is Gaussian, the query, and the statistic by group.
AGES = {g: 30 * n for g, n in MEMBERS.items()}
CASES = [
    (OPEN, False, "SELECT g, COUNT(*) AS x FROM S.T GROUP BY g", MEMBERS),
    (CLAMPED, False, "SELECT g, COUNT(*) AS x FROM S.T GROUP BY g", MEMBERS),
    (OPEN, False, "SELECT g, SUM(age) AS x FROM S.T GROUP BY g", AGES),
    (OPEN, True, "SELECT g, COUNT(DISTINCT pid) AS x FROM S.T GROUP BY g", MEMBERS),
    ({}, False, "SELECT g, COUNT(DISTINCT pid) AS x FROM S.T GROUP BY g", MEMBERS),
    ({}, True, "SELECT g, COUNT(DISTINCT pid) AS x FROM S.T GROUP BY g", MEMBERS),
    ({}, False, "SELECT g, COUNT(*) AS x FROM S.T GROUP BY g", MEMBERS),
    ({}, False, "SELECT g, SUM(age) AS x FROM S.T GROUP BY g", AGES),
    (OPEN, False, "SELECT g, AVG(age) AS x FROM S.T GROUP BY g", AGES),
]


def symbol(one, mechanism):
    """Return what is read of a column of the inner query."""
    names = ("epsilon", "delta", "max_contrib", "scale")
    noise = mechanism and {
        "class": type(mechanism).__name__,
        **{name: getattr(mechanism, name) for name in names},
    }
    if mechanism and one.is_key_count:
        noise["threshold"] = mechanism.threshold
    return {
        "name": one.name,
        "is_count": bool(one.is_count),
        "is_key_count": bool(one.is_key_count),
        "mechanism": noise,
    }


def case(options, gaussian, query, statistic):
    """Return the columns of a query and the distribution of its answers."""
    privacy = Privacy(epsilon=0.8, delta=1e-3)
    if gaussian:
        privacy.mechanisms.map = dict.fromkeys(Stat, Mechanism.gaussian)
    table = {**options, "max_ids": 1, "rows": 27, **COLUMNS}
    reader = from_df(PEOPLE, privacy=privacy, metadata={"": {"S": {"T": table}}})
    inner, outer = reader._rewrite(query)
    # Many groups with as many members each: what the data base would have counted.
    names = [one.name for one in inner._select_symbols]
    exact = [
        [f"{g}{i}" if x == "g" else 30 * n if x == "sum_age" else n for x in names]
        for g, n in MEMBERS.items()
        for i in range(RUNS)
    ]
    header, *rows = reader.execute(query, pre_aggregated=[names, *exact])
    draws = {g: [x for name, x in rows if name[0] == g] for g in MEMBERS}
    at = {g: sorted(set(np.quantile(x, LEVELS, method="lower"))) for g, x in draws.items() if x}
    return {
        "inner": [
            symbol(*s)
            for s in zip(inner._select_symbols, reader._get_mechanisms(inner), strict=True)
        ],
        "expressions": [str(e.expression) for e in outer.select.namedExpressions],
        "types": [s.expression.type() for s in outer._select_symbols],
        "options": {"censor_dims": outer.censor_dims, "clamp_counts": outer.clamp_counts},
        "query": query,
        "rows": [header, *([name[0], x] for name, x in rows if name[1:] == "0")],
        "statistic": statistic,
        "runs": RUNS,
        "present": {g: len(x) / RUNS for g, x in draws.items()},
        "at": at,
        "share_up_to": {g: [sum(z <= a for z in draws[g]) / RUNS for a in at[g]] for g in at},
    }


if __name__ == "__main__":
    made = {"smartnoise-sql": version("smartnoise-sql"), "cases": [case(*c) for c in CASES]}
    sys.stdout.write(json.dumps(made, indent=1, default=float) + "\n")
