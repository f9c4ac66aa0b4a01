"""Text files: a file, a folder with a file per client, or a column of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from submodel.core.errors import ConfigError, refuse
from submodel.core.options import PathText
from submodel.data.examples import Dataset
from submodel.data.files import check_encoding
from submodel.data.sources import SourceContext
from submodel.data.tables import TABLES
from submodel.data.text.build import Streams, TextOptions, TextSource, build_text
from submodel.data.text.streams import check_exists, read_plain, read_table, visible_files

_SHARE = 0.1


class Text:
    """Text at a path, as a source."""

    class Options(TextOptions):
        """The keys of ``text:PATH``."""

        test_path: PathText | None = Field(
            None, description="other text of the same kind for testing, instead of test_share"
        )
        encoding: str = Field("utf-8", description="encoding of the text, such as latin-1")
        column: str | None = Field(None, description="of .csv, .jsonl, .parquet: the texts")
        client: str | None = Field(
            None, description="of .csv, .jsonl, .parquet: the client of each text"
        )

        @model_validator(mode="after")
        def _one_test_part(self) -> Self:
            if self.test_path is not None and self.test_share != _SHARE:
                raise ValueError("test_share: data.test_path is the test part; leave one out")
            return self

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Build the sequences of the text."""
        check_encoding(options.encoding)
        path = Path(context.argument).expanduser()
        test = None if options.test_path is None else Path(options.test_path).expanduser()
        paths = [path] if test is None else [path, test]
        for one in paths:
            check_exists(one)
            _check_columns(one, options)

        def read() -> tuple[Streams, Streams | None]:
            if context.encoding is not None:
                return _read(path, options), ()  # without a test part
            return _read(path, options), None if test is None else _read(test, options)

        files = tuple(file for one in paths for file in visible_files(one))
        source = TextSource(files, read, tuple(cls.Options.model_fields), str(path))
        return build_text(source, options, context.encoding)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and not path.is_dir()


def _check_columns(path: Path, options: Text.Options) -> None:
    """Require columns for tables, and refuse them for other files."""
    if _is_table(path):
        if options.column is None:
            raise ConfigError(f"data.column: name the column of {path} that holds the texts")
        return
    problems = [
        f"data.{key}: is for {', '.join(TABLES)} files; {path} is not one"
        for key in ("column", "client")
        if getattr(options, key) is not None
    ]
    refuse(problems)


def _read(path: Path, options: Text.Options) -> Streams:
    if not _is_table(path):
        return read_plain(path, options.encoding)
    assert options.column is not None  # checked before
    return read_table(path, options.encoding, options.column, options.client)
