"""The tests; they mirror src/submodel."""
