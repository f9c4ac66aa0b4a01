"""A round: its parts, and how updates become a model. May import schemes and below."""
