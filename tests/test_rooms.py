"""The layout of the package: its rooms, which way imports point, and the walks that CONTRIBUTING names."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType

import numpy as np
import pytest
from conftest import random_documents, random_text

import secateurs
from secateurs import Index, ShardedIndex
from secateurs.cluster.layout import Layout, ShardRecord, shard_of
from secateurs.encoders.onnx import OnnxEncoder

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "secateurs"


def load_rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rooms"] = module
    spec.loader.exec_module(module)
    return module


rooms = load_rooms()


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: imported - {""} for module, imported in rooms.imports().items() if module}
    assert len(graph) > 80
    assert rooms.cycles(graph) == []


def test_a_cycle_is_found_through_a_type_import_and_an_import_inside_a_function(tmp_path: Path) -> None:
    package = tmp_path / "things"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n")
    (package / "b.py").write_text("def b():\n    import things.c\n")
    (package / "c.py").write_text("from . import a\n")
    assert rooms.cycles(rooms.imports(package)) == [["a", "b", "c"]]


def test_every_module_is_in_a_room_and_every_room_has_modules() -> None:
    known = rooms.modules()
    for module in known:
        assert module == "" or rooms.room_of(module) is not None, module
    for room in rooms.ROOMS:
        for name in room.modules:
            assert name in known, f"{name} of {room.name} is gone"


def test_imports_point_to_rooms_further_down() -> None:
    depth = {room.name: number for number, layer in enumerate(rooms.LAYERS) for room in layer}
    for module, imported in rooms.imports().items():
        if module == "":
            continue  # the package's own names, imported lazily
        room = rooms.room_of(module)
        for other in imported - {""}:
            target = rooms.room_of(other)
            assert target is room or depth[target.name] > depth[room.name], f"{module} imports {other}"


def test_only_the_command_line_imports_typer() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] != "cli":
            assert not re.search(r"^\s*(import|from) typer", path.read_text("utf-8"), re.MULTILINE), path


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    assert rooms.PICTURE.read_text("utf-8") == rooms.draw(), "run  make diagram"


# The walks. CONTRIBUTING lists the files of each in order; a trace of the real call must enter them in that order.


def listed(section: str) -> list[str]:
    """The files of a walk, as CONTRIBUTING lists them."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = re.search(rf"^\*\*{section}\*\*[^\n]*\n\n((?:    [^\n]*\n)+)", text, re.MULTILINE)
    assert found is not None, section
    return found[1].split()


def entered(call: Callable[[], object]) -> list[str]:
    """The files of the package in the order in which the call enters them first, on this thread."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.setdefault(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(files)


@pytest.fixture
def shards(tmp_path: Path) -> ShardedIndex:
    folder = tmp_path / "big.sec"
    folder.mkdir()
    for number in range(2):
        documents = [document for document in random_documents(40) if shard_of(document.docno, 2) == number]
        Index.build(folder / f"shard-000{number}", documents, encoder=None)
    Layout((ShardRecord("shard-0000"), ShardRecord("shard-0001")), "secateurs test").write(folder)
    return ShardedIndex(folder)


def in_order(section: str, trace: list[str]) -> None:
    """The call enters every file of the walk, in the order of the walk."""
    walk = listed(section)
    assert [file for file in trace if file in walk] == walk


def test_the_walk_of_a_query_has_at_most_17_files_besides_those_that_all_steps_share(index: Index) -> None:
    index.search("wait for a thread", p=3)
    trace = entered(lambda: index.search("wait for a thread to finish", p=3))
    in_order("A query", trace)
    assert len(listed("A query")) <= 17
    assert set(trace) - set(listed("A query")) <= set(listed("Shared by all steps"))


def test_with_weights_one_more_file_is_entered_where_contributing_says(index: Index) -> None:
    trace = entered(lambda: index.search("wait for a thread to finish", weights="idf"))
    assert [file for file in trace if file in ("effort.py", "weights.py", "importance.py")] == [
        "weights.py",
        "importance.py",
        "effort.py",
    ]


def test_the_walk_of_a_document(encoder: OnnxEncoder, passages: list[dict[str, str]], tmp_path: Path) -> None:
    assert encoder.vocabulary  # computed once, when the first background is chosen
    build = partial(Index.build, tmp_path / "i.sec", passages[:20], encoder=encoder, progress=False)
    in_order("A document", entered(build))


def test_the_walk_of_a_write(encoder: OnnxEncoder, passages: list[dict[str, str]], tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", passages[:20], encoder=encoder, progress=False)
    in_order("A write", entered(lambda: index.update(passages[18:22], progress=False)))


def test_the_walk_of_a_search_over_shards(shards: ShardedIndex) -> None:
    query = random_text(np.random.default_rng(0), 6)
    with shards:
        shards.search(query)
        in_order("A search over shards", entered(lambda: shards.search(query, p=3)))


def test_the_package_is_the_one_of_this_checkout() -> None:
    assert Path(secateurs.__file__).parent == PACKAGE
