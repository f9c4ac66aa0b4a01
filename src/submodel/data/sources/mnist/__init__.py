"""MNIST and Fashion-MNIST: images in idx files."""
