"""Training on devices: what one does, how a server copes.

Nothing here knows how messages travel: a `Post` carries them. Only `submodel.federation.flower`
knows of Flower.
"""
