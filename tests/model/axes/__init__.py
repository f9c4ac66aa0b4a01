"""Tests of the axes."""
