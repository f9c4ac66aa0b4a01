"""What a client does with its sub-model: steps, optimisers. May import tasks and below."""
