"""From a configuration to a setup that was tried and fits. May import config and below."""
