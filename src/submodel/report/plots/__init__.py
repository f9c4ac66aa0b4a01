"""Figures by name: `registry` knows them, `sources` reads what they show, the others draw it."""
