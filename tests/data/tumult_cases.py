"""Write what Tumult Analytics says of its noise and answers, as JSON, to standard output.

`tumult.json` was made by tmlt.analytics 0.21, which needs Java and an environment of its own:

    python tests/data/tumult_cases.py > tests/data/tumult.json
"""

import json
import os
import sys
from fractions import Fraction
from importlib.metadata import version

os.environ["PYSPARK_PYTHON"] = sys.executable

import pandas as pd
from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddOneRow,
    KeySet,
    PureDPBudget,
    QueryBuilder,
    RhoZCDPBudget,
    Session,
)
from tmlt.core.domains.spark_domains import (
    SparkDataFrameDomain,
    SparkStringColumnDescriptor,
)
from tmlt.core.measurements.aggregations import create_partition_selection_measurement

PEOPLE = pd.DataFrame({"age": [20, 30, 40, 50] * 25, "pay": [1.5, 2.5, 3.5, 4.5] * 25})
PEOPLE["town"] = ["Aa", "Bo"] * 50
TOWNS = [f"t{i}" for i in range(150)]
ALL = QueryBuilder("t")
QUERIES = {
    "count": ALL.count(),
    "sum": ALL.sum("age", 0, 100),
    "pay": ALL.sum("pay", 0.0, 10.0),
    "average": ALL.average("pay", 0.0, 10.0),
    "median": ALL.median("pay", 0.0, 10.0),
}
# Every town that has nobody in it shows the noise as it is.
TABLE = KeySet.from_dict({"town": TOWNS})
EMPTY = ALL.groupby(TABLE)
BY_TOWN = {
    "count": EMPTY.count(),
    "sum": EMPTY.sum("age", 0, 100),
    "pay": EMPTY.sum("pay", 0.0, 10.0),
    "suppressed": EMPTY.count().suppress(1),
}
SELECTIONS = [(1.0, 1e-5, 1), (0.7, 1e-3, 1), (0.7, 1e-3, 3), (3.0, 0.3, 1)]


def case(session, name, query, budget):
    """Return the noise of a query, and what it answered."""
    noise = [
        {"noise_mechanism": one["noise_mechanism"].name, "noise_parameter": one["noise_parameter"]}
        for one in session._noise_info(query, budget)
    ]
    rows = session.evaluate(query, budget).toPandas().to_dict("list")
    return {"name": name, "budget": type(budget).__name__, "noise": noise, "rows": rows}


def threshold(epsilon, delta, most):
    """Return the scale and the threshold by which groups are selected."""
    domain = SparkDataFrameDomain({"town": SparkStringColumnDescriptor()})
    made = create_partition_selection_measurement(
        domain, *(str(Fraction(str(number))) for number in (epsilon, delta)), most
    )
    return [epsilon, delta, most, float(made.alpha.to_float(round_up=True)), made.threshold]


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    people = spark.createDataFrame(PEOPLE)
    cases = []
    for total, one in ((PureDPBudget(99), PureDPBudget(1)), (RhoZCDPBudget(99), RhoZCDPBudget(1))):
        session = Session.from_dataframe(total, "t", people, protected_change=AddOneRow())
        asked = [*QUERIES.items(), *BY_TOWN.items()]
        cases += [
            case(session, *q, one)
            for q in asked
            if q[0] != "median" or isinstance(total, PureDPBudget)
        ]
    made = {
        "tmlt.analytics": version("tmlt.analytics"),
        "cases": cases,
        "thresholds": [threshold(*s) for s in SELECTIONS],
    }
    sys.stdout.write(json.dumps(made, default=float) + "\n")
