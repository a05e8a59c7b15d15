"""Parquet in parts: as many files as it takes, and never more in memory than one group of rows.

with Parts(folder / "data", schema) as parts:
    parts.add({"id": "a", …}, size=120_000)
"""

import contextlib
from pathlib import Path
from typing import Any, Self

from arpo.errors import ConfigError

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet as pq
except ModuleNotFoundError:
    raise ConfigError("Parquet needs pyarrow, which is not installed: pip install 'arpo[export]'") from None

ROWS, GROUP, FILE = 1000, 2**26, 2**29  # rows of a group, its bytes, and those of a file, at most; about


class Parts(contextlib.AbstractContextManager["Parts"]):
    """The files of one table."""

    def __init__(self, folder: Path, schema: Any) -> None:
        self._folder, self._schema = folder, schema
        self._rows: list[dict[str, Any]] = []
        self._waiting = self._written = self._files = self.count = 0
        self._writer: Any = None
        folder.mkdir()

    def add(self, row: dict[str, Any], size: int) -> None:
        """One more row, of about so many bytes."""
        self._rows.append(row)
        self._waiting += size
        self.count += 1
        if self._waiting >= GROUP or len(self._rows) >= ROWS:
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            path = self._folder / f"part-{self._files:05d}.parquet"
            self._writer, self._written = pq.ParquetWriter(path, self._schema, compression="zstd"), 0
            self._files += 1
        self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._written += self._waiting
        self._rows, self._waiting = [], 0
        if self._written >= FILE:
            self._end()

    def _end(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and (self._rows or not self._files):  # a table without rows is one file too
                self._write()
        finally:
            self._end()
