"""Training on devices: what one does, how a server copes. May import runs and below.

Nothing here knows how messages travel: a `Post` carries them. Only `submodel.federation.flower`
knows of Flower.
"""
