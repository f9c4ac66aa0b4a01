"""From a configuration to a setup: everything made, tried and found to fit."""
