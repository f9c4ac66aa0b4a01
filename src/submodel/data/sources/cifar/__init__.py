"""CIFAR-10 and CIFAR-100: their files, where they come from, and the source."""
