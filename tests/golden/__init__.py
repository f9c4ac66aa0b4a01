"""What runs ended with before the code was rearranged: the same bytes today."""
