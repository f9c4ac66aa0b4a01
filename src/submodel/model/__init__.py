"""A model: axes, cuts, small modules of cuts, costs, the zoo. May import presentation and below."""
