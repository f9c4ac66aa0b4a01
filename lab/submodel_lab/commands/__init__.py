"""The commands that the laboratory adds: `advise`, `reproduce` and `study`."""
