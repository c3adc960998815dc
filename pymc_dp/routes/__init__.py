"""Ways to sample a model, each with what it is expected to give."""
