"""The work file: what an experiment has measured so far, so that a second start goes on where the first was stopped.

A line of JSON says which experiment it is; then comes one line per query and setting, as soon as it is measured. A
process that is killed leaves at most its last line unfinished, and that one is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import SecateursError

Key = tuple[str, str]  # setting, qid


class WorkFile:
    """Use it in a `with`; `done` holds what an earlier start has measured."""

    def __init__(self, path: Path, experiment: Mapping[str, Any]) -> None:
        self.path = path
        self._experiment = json.loads(json.dumps(experiment))
        self.done: dict[Key, dict[str, Any]] = {}
        kept = b""
        if path.is_file() and path.stat().st_size:
            kept = self._read()
        if not kept:
            kept = self._line(self._experiment)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept)
        self._file: IO[bytes] = path.open("r+b")
        self._file.truncate(len(kept))
        self._file.seek(len(kept))

    def add(self, record: dict[str, Any]) -> None:
        self._file.write(self._line(record))
        self._file.flush()  # the system has it now, whatever happens to this process
        self.done[record["setting"], record["qid"]] = record

    def __enter__(self) -> WorkFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self) -> bytes:
        """The whole lines that are there; what follows the last line end was cut off by a kill."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = self._parsed(whole)
        experiment = next(lines, None)
        if experiment is None:
            return b""
        if experiment != self._experiment:
            raise SecateursError(
                f"{self.path} holds the unfinished work of another experiment (other {self._differences(experiment)}): "
                "give the command that began it to go on, or another --out, or delete the file to begin again"
            )
        for record in lines:
            self.done[record["setting"], record["qid"]] = record
        return whole

    def _parsed(self, content: bytes) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                parsed = json.loads(line)
                if not isinstance(parsed, dict) or (number > 1 and not {"setting", "qid"} <= parsed.keys()):
                    raise ValueError("not a record of this file")
            except ValueError as error:
                raise SecateursError(
                    f"{self.path}, line {number}: damaged ({error}); delete the file to begin again"
                ) from error
            yield parsed

    def _differences(self, other: Mapping[str, Any]) -> str:
        names = [name for name in self._experiment if other.get(name) != self._experiment[name]]
        return ", ".join(name.replace("_", " ") for name in names) or "contents"

    @staticmethod
    def _line(value: Mapping[str, Any]) -> bytes:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
