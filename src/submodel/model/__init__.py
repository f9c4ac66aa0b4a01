"""A model: its axes, its cuts, the small modules of cuts, and what they cost."""
