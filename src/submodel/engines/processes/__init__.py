"""Several processes that share a run."""
