"""Folder on the PYTHONPATH of devices that should misbehave."""
