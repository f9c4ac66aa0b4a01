"""Convolutional nets of few channels by kernels of our own, in C, built where they first run."""
