"""Seconds per round: our engines against a bare loop and against other systems."""
