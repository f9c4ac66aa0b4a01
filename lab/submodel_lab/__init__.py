"""Laboratory of `submodel`: theory, experiments of the paper, converged runs and advice."""
