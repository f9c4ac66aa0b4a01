"""What is learned: losses, and what they count. May import data and below."""
