"""What OpenDP's contingency tables release; writes mbi.json, which the tests of the readers use.

In an environment of its own: ``pip install "opendp[mbi,polars]==0.16.0"``.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib")
AGES, CUTS, CELLS = ["lo", "mid", "hi"], [20.0, 40.0], 70


def released(frame, loss, algorithm, keys, **cuts):
    context = dp.Context.compositor(
        data=frame,
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(**loss),
        split_evenly_over=1,
    )
    query = context.query().contingency_table(keys=keys, algorithm=algorithm, **cuts)
    return query.release(), str(query.resolve().output_measure)


def main():
    rng = np.random.default_rng(0)
    age, sex, hours = rng.integers(0, 3, 500), rng.integers(0, 2, 500), rng.uniform(0, 60, 500)
    sex = (age + sex) % 2
    rows = pl.LazyFrame({"age": [AGES[i] for i in age], "sex": sex, "hours": hours})
    nobody = pl.LazyFrame({"a": [0], "b": [0]})
    count = dp.mbi.Count
    fixed = dp.mbi.Fixed(queries=[count(("age", "sex")), count(("sex", "hours"), weight=2.0)])
    whole = dp.mbi.Fixed(queries=[count(("a", "b"))])
    kept = {name: version(name) for name in ("opendp", "mbi")}
    kept["sex"] = [*np.bincount(sex).tolist(), 0]
    for name, loss, algorithm in (
        ("zcdp", {"rho": 0.5}, fixed),
        ("pure", {"epsilon": 2.0}, dp.mbi.AIM(queries=2, rounds=6)),
    ):
        keys = {"age": AGES, "sex": [0, 1]}
        table, measure = released(rows, loss, algorithm, keys, cuts={"hours": CUTS})
        every = list(range(CELLS))
        noisy = released(nobody, loss, whole, {"a": every, "b": every})[0].marginals.flatten()[0]
        noise = np.asarray(noisy.noisy_measurement)
        noise[0] -= 1  # of the one row
        values, times = np.unique(noise, return_counts=True)
        kept[name] = {
            "measure": measure,
            "keys": {column: labels.to_list() for column, labels in table.keys.items()},
            "marginals": [
                {
                    "clique": m.clique,
                    "y": np.asarray(m.noisy_measurement).tolist(),
                    "stddev": float(m.stddev),
                }
                for m in table.marginals.flatten()
            ],
            "noise": {
                "stddev": float(noisy.stddev), "values": values.tolist(), "times": times.tolist()
            },
        }  # fmt: skip
    (Path(__file__).parent / "mbi.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
