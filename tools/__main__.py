"""Write what docs/ draws from the code: `make graph`."""

from __future__ import annotations

from tools import commands, completions, components, graph, picture
from tools.pages import ARCHITECTURE, COMMANDS, CONFIGURATION, PICTURE, replace
from tools.rooms import read_rooms


def main() -> None:
    """The import graph, its picture, the keys of the configuration, and the commands."""
    rooms = read_rooms()
    replace(ARCHITECTURE, "import graph", graph.section(rooms))
    replace(CONFIGURATION, "keys", components.page())
    replace(COMMANDS, "commands", commands.page())
    completions.KEYS.write_text(completions.text(), "utf-8")
    picture.draw(rooms, PICTURE)


if __name__ == "__main__":
    main()
