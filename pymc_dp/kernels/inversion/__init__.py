"""The law of a noisy sum, by Fourier inversion."""
