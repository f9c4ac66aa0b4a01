"""Ordered dropout (FjORD): nested prefixes, and the steps that clients take at each width."""
