"""Tests of `submodel` and its laboratory; folders follow the packages of src/submodel."""
