"""PyTensor tools that know nothing of privacy."""
