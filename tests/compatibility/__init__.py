"""Files that earlier versions wrote, one folder for each version, and what they must be read as.

A folder is never changed: `python -m tests.compatibility.write VERSION` makes a new one beside it.
"""
