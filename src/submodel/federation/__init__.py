"""Training on machines that are not ours: what a device does, and how the server copes with many.

Nothing here knows how messages travel: an `Exchange` carries them (`submodel.federation.flower`).
"""
