"""What docs/ and the README tell readers to type is tried."""
