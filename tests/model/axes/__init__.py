"""Tests of axes."""
