"""Text as data: tokenisers, sequences of equal length, and the owners of texts."""
