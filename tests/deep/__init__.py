"""Readers under attack: files and messages that were right until something was done to them."""
