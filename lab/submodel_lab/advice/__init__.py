"""Advice: recommend a training method for a fleet from recorded results."""
