"""Tests of all code blocks in docs/ and the README."""
