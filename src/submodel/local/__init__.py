"""What a client does with its sub-model."""
