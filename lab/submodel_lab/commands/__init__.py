"""Commands of the laboratory: `advise`, `reproduce` and `study`."""
