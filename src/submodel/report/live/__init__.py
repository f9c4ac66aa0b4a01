"""Runs and experiments while they run: as a screen of text, and as a page of a local server."""
