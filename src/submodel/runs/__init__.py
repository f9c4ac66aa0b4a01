"""A run: the loop over rounds, its folder, and what can be done with it afterwards."""
