"""Real devices, over Flower: the only part of the package that imports flwr."""
