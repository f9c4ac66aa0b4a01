"""Generators of documentation from the code and from records: `make graph`, `make results`."""
