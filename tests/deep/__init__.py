"""Attacks on readers with damaged files and messages."""
