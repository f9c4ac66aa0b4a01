"""Unbiased sub-models (MAST): fresh draws, divided by their chances."""
