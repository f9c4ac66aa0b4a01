"""Live views of runs and experiments: in a terminal, and as a page of a local server."""
