"""Records of which nobody knows how many there are."""
