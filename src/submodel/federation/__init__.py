"""Training over real devices: their work, and the server's engine.

Messages travel over a `Channel`. Only `submodel.federation.flower` depends on Flower.
"""
