"""Training to the end: when a curve is flat, rates chosen on held-out data, the questions asked."""
