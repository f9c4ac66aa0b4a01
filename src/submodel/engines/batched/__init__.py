"""Training of clients of equal shape in stacks."""
