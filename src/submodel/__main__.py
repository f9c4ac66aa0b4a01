"""``python -m submodel``."""

from submodel.cli import main

main()
