"""Training over real devices by Flower."""
