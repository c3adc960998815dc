"""Sums over records without a law in closed form: clamped, log-normal, of functions of a record.

Reads   one sum over all records or over public groups, of one function of a record.
Law     the characteristic function of a record to the power n, inverted along a contour.
Costs   some 30 to 500 nodes a sum, each with its quadrature; asked last.
Source  Daniels (1954), and docs/reference/methods.md.
"""

from pymc_dp.graphs.registry import load

load(__name__)
