"""What users see, as numbers and keys: the units of nets, costs, exported files, errors.

The JSON files beside this one were recorded; tests compare what the code does today with them.
`python -m tests.pins` records them anew, and says when to.
"""
