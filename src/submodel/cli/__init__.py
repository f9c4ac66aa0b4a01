"""Command line: one short function per command."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.cli.application import main
    from submodel.cli.common import AsJson, SetOptions, console, make_folder, print_json, talk
    from submodel.cli.completion import config_files

__all__ = [
    "AsJson", "SetOptions", "config_files", "console", "main", "make_folder", "print_json", "talk",
]  # fmt: skip
__getattr__ = lazily(__name__)
