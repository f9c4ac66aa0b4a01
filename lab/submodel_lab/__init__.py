"""The laboratory of `submodel`: theory, the paper's experiments, converged runs, advice."""
