"""Small convolutional nets and transformers by our own kernels in C, built where they first run."""
