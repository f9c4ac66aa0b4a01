"""Write what docs/ draws from the code: `make graph`."""

from __future__ import annotations

from tools import components, graph, picture
from tools.pages import ARCHITECTURE, CONFIGURATION, PICTURE, replace
from tools.rooms import read_rooms


def main() -> None:
    """The import graph, its picture, and the keys of the configuration."""
    rooms = read_rooms()
    replace(ARCHITECTURE, "import graph", graph.section(rooms))
    replace(CONFIGURATION, "keys", components.page())
    picture.draw(rooms, PICTURE)


if __name__ == "__main__":
    main()
