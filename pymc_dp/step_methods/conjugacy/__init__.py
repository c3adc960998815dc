"""The conjugate families: every module of this package registers what it knows of one.

To add a pair, write a module that puts it into `CHILDREN` (and a new family into `FAMILIES`
and `PRIORS`); it is found by itself.
"""

from pymc_dp.graphs.registry import load

load(__name__)
