"""Draw docs/images/gallery: `make gallery`."""

from __future__ import annotations

from tools.gallery.nets import draw_nets
from tools.gallery.scenes import ANIMATIONS, SCENES, play
from tools.gallery.strips import draw_strips
from tools.packages import ROOT

FOLDER = ROOT / "docs/images/gallery"


def main() -> None:
    """Draw a picture for every scene, and the animations."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, scene in SCENES.items():
        (FOLDER / f"{name}.svg").write_text(draw_strips(play(scene)), "utf-8")
    for name in ANIMATIONS:
        (FOLDER / f"{name}-nets.svg").write_text(draw_nets(play(SCENES[name])), "utf-8")


if __name__ == "__main__":
    main()
