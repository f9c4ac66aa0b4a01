"""Kernels in C for small convolutional nets and transformers, compiled at the first use."""
