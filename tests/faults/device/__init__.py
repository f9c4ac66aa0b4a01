"""Put on the PYTHONPATH of devices that are to misbehave."""
