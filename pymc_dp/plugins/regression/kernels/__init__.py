"""Numbers in, numbers out: the chain of a regression, and the law of its sums."""
