"""The paper's experiments: what is compared, running it, and saying what came out."""
