"""A run: the loop over rounds, its folder, what follows. May import prepare and below."""
