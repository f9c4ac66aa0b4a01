"""Sub-models that a run's devices will keep: cut from the trained model, trained for themselves."""
