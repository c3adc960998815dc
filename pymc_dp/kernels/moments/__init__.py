"""Chains on means, variances and sums of products; the feasible region."""
