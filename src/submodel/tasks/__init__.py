"""What is learned: losses, and what they count."""
