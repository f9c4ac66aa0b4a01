"""Clients of equal shape, trained together as stacks."""
