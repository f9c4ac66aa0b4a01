"""Augmentations: what is done to the examples of a training batch, at random, a file for each."""

from __future__ import annotations

from submodel.data.augmentations.base import Augmentation, Augmentations, AugmentContext

__all__ = ["AugmentContext", "Augmentation", "Augmentations"]
