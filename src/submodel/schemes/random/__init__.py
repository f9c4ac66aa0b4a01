"""Random sub-models (Algorithm 1), and the draws layer by layer of FedRolex's code."""
