"""Training on devices: what one does, how a server copes. May import runs and below.

Nothing here knows how messages travel: an `Exchange` carries them (`submodel.federation.flower`).
"""
