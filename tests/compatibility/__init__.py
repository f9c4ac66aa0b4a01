"""Files of earlier versions, one folder for each version, with the expected values after reading.

A folder is never changed: `python -m tests.compatibility.write VERSION` adds a new one.
"""
