"""Recorded ends of runs from before the code was rearranged, and their equality today."""
