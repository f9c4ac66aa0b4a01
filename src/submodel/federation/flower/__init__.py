"""Real devices: the same training over Flower."""
