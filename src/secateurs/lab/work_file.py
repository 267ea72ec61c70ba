"""The work file: what an experiment has measured so far, so that the same command can go on after a stop.

The first line, in JSON, describes the experiment. Then comes a line for each query and setting, as soon as it is
measured. A process that is killed leaves at most its last line unfinished: that search is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from ..errors import SecateursError
from ..storage.locks import try_to_lock

Key = tuple[str, str]  # setting, qid


class WorkFile:
    """Use it in a `with`; `done` holds the records that are in the file."""

    def __init__(self, path: Path, experiment: Mapping[str, Any]) -> None:
        self.path = path
        self._experiment = json.loads(json.dumps(experiment, default=as_json))
        self.done: dict[Key, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            if not try_to_lock(self._file):
                raise SecateursError(f"another process is at work on {path}: wait for it, or choose another --out")
            self._file.truncate(self._read())
            if not self._file.tell():
                self._write(self._experiment)
        except BaseException:
            self._file.close()
            raise

    def add(self, record: dict[str, Any]) -> None:
        self._write(record)
        self.done[record["setting"], record["qid"]] = record

    def __enter__(self) -> WorkFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self) -> int:
        """The number of bytes of whole lines; an unfinished line after them is ignored."""
        self._file.seek(0)
        content = self._file.read()
        whole_lines = content[: content.rfind(b"\n") + 1]
        self._file.seek(len(whole_lines))
        lines = self._parsed(whole_lines)
        experiment = next(lines, None)
        if experiment is None:
            return 0
        if experiment != self._experiment:
            raise SecateursError(
                f"{self.path} holds the unfinished work of another experiment (other {self._differences(experiment)}): "
                "repeat the command that began it, or choose another --out, or delete the file to begin again"
            )
        for record in lines:
            self.done[record["setting"], record["qid"]] = record
        return len(whole_lines)

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

    def _write(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, ensure_ascii=False, default=as_json)
        self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()  # the operating system has it now, even if this process is killed


def as_json(value: Any) -> Any:
    """A value that a user's system gave, as JSON can hold it: NumPy numbers are numbers, other objects are text."""
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item() if isinstance(value, np.generic) else str(value)
