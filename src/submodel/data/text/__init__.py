"""Text as data: tokens, sequences of equal length, whose words they are."""
