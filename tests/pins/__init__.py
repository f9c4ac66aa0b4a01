"""Recorded numbers and keys that users see: units of nets, costs, exported files, errors.

Tests compare the code with the JSON files in this folder. `python -m tests.pins` records them anew,
and says when to.
"""
