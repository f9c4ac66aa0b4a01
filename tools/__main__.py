"""Generate the parts of docs/ that follow from the code: `make graph`."""

from __future__ import annotations

from tools import commands, completions, components, graph, picture
from tools.packages import read_packages
from tools.pages import ARCHITECTURE, COMMANDS, CONFIGURATION, PICTURE, replace


def main() -> None:
    """Generate the import graph, its picture, the configuration keys and the commands."""
    packages = read_packages()
    replace(ARCHITECTURE, "import graph", graph.section(packages))
    replace(CONFIGURATION, "keys", components.page())
    replace(COMMANDS, "commands", commands.page())
    completions.KEYS.write_text(completions.text(), "utf-8")
    picture.draw(packages, PICTURE)


if __name__ == "__main__":
    main()
