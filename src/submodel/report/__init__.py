"""What a run shows: tables, pictures, progress."""
