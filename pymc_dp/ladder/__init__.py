"""The ladder from records to statistics to the marginal: the same posterior on every rung."""
