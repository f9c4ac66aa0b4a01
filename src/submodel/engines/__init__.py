"""Where tasks run: here, in stacks, in several processes. May import algorithm and below."""
