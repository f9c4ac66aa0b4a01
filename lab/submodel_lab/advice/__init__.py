"""Advice: which way to train suits a fleet, by what records show and no further."""
