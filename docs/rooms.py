"""Draws docs/images/rooms.svg from the import graph of src/secateurs:  python docs/rooms.py

The rooms, from top to bottom, are the layers of the package: every import points to a room further down, or stays
inside its room. Imports for types and imports inside functions count. tests/test_rooms.py checks that, and that the
picture is the one that this file draws.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "src" / "secateurs"
PICTURE = Path(__file__).parent / "images" / "rooms.svg"


class Room(NamedTuple):
    name: str
    holds: str  # in a few words
    modules: tuple[str, ...]  # files or folders at the top of the package
    query: str = ""  # which steps of a query it does
    document: str = ""  # which steps of a document it does


LAYERS: tuple[tuple[Room, ...], ...] = (
    (Room("cli", "parse, call the library, print", ("cli", "__main__"), query="1, 9", document="1"),),
    (Room("integrations", "frameworks, databases, MCP, PyTerrier", ("integrations",)),),
    (
        Room("service", "HTTP and the explorer page", ("service",)),
        Room("lab", "experiments, reproductions", ("lab", "demo")),
    ),
    (Room("cluster", "shards: build and search on Ray", ("cluster",)),),
    (
        Room(
            "index",
            "Index, and the contract of every index; matches, exports, imports",
            ("index", "contract", "importing", "index_encoder", "matches", "transfer", "viewer"),
            query="2",
            document="2",
        ),
    ),
    (
        Room(
            "search",
            "the pipeline of every search; explain, re-rank, calibrate",
            ("search", "compiling", "fusion", "explain", "reranking", "calibration"),
            query="3",
        ),
    ),
    (
        Room(
            "decisions",
            "weights, importance, effort, costs, pruning, relevance",
            ("weights", "importance", "effort", "costs", "pruning", "relevance"),
            query="5",
        ),
        Room("gather", "kept embeddings to candidates", ("gather",), query="6"),
    ),
    (Room("storage", "what is on disk: segments, stores, changes, repair", ("storage",), query="8", document="5"),),
    (
        Room("encoders", "text to embeddings, token counts", ("encoders", "background"), query="4", document="4"),
        Room("corpus", "readers of documents and queries", ("corpus", "queries", "metadata", "trec"), document="3"),
    ),
    (Room("kernels", "compiled code", ("kernels",), query="7", document="6"),),
    (
        Room(
            "records",
            "the records that every step shares; errors, threads, progress",
            (
                "records",
                "settings",
                "rankings",
                "frequencies",
                "errors",
                "cancellation",
                "refresh",
                "threads",
                "progress",
                "hashing",
                "hit_fields",
                "html_views",
                "version",
            ),
        ),
    ),
)
ROOMS = tuple(room for layer in LAYERS for room in layer)
QUERY = "#1b5fad"
DOCUMENT = "#2c7a3f"
QUERY_STEPS = "a query: parse, open, decide and run, encode, prune, gather, compute, read and fetch, print"
DOCUMENT_STEPS = "a document: parse, open, read, encode, store, cluster"


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package by its dotted name, without the package's own."""
    paths = {path: path.relative_to(package).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}


def imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """For each module the modules of the package that it imports, anywhere in the file. "" is the package itself."""
    known = modules(package)
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        own_package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        own_package = [part for part in own_package if part]
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = (node.module or "").split(".") if node.module else []
                if node.level:
                    base = own_package[: len(own_package) - node.level + 1] + base
                elif base[:1] == [package.name]:
                    base = base[1:]
                else:
                    continue
                for alias in node.names:
                    whole = ".".join([*base, alias.name])
                    imported.add(whole if whole in known else ".".join(base))
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.split(".")[0] == package.name]
                imported.update(name.partition(".")[2] for name in names)
        graph[module] = {name for name in imported if name in known and name != module}
    return graph


def room_of(module: str) -> Room | None:
    """The room a module belongs to; None for the package's __init__, which imports lazily from all of them."""
    return next((room for room in ROOMS if module.split(".")[0] in room.modules), None)


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of names that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            for imported in graph.get(waiting.pop(), ()):
                if imported not in seen:
                    seen.add(imported)
                    waiting.append(imported)
        reached[name] = seen
    groups = {tuple(sorted(b for b in reached[a] if a in reached.get(b, ()))) for a in graph if a in reached[a]}
    return [list(group) for group in sorted(groups)]


def draw(package: Path = PACKAGE) -> str:
    """The rooms as an SVG picture."""
    paths = modules(package)
    width, height, gap, left, top = 980, 64, 16, 20, 96
    parts = []
    for depth, layer in enumerate(LAYERS):
        y = top + depth * (height + gap)
        room_width = (width - 2 * left - gap * (len(layer) - 1)) / len(layer)
        for place, room in enumerate(layer):
            files = [path for module, path in paths.items() if module.split(".")[0] in room.modules]
            parts.append(_box(room, left + place * (room_width + gap), y, room_width, height, len(files)))
    total = top + len(LAYERS) * (height + gap)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif">
<title>The rooms of the package, and the order in which a query and a document pass through them</title>
<rect width="{width}" height="{total}" fill="#ffffff"/>
<text x="{left}" y="32" font-size="20" font-weight="bold" fill="#222222">The rooms of src/secateurs</text>
<text x="{left}" y="56" font-size="13" fill="#444444">Every import points downwards. The numbers are the steps of</text>
<text x="{left}" y="76" font-size="13" fill="{QUERY}">{QUERY_STEPS}</text>
<text x="{left + 560}" y="76" font-size="13" fill="{DOCUMENT}">{DOCUMENT_STEPS}</text>
{chr(10).join(parts)}
</svg>
"""


def _box(room: Room, x: float, y: float, width: float, height: float, files: int) -> str:
    circles = []
    at = x + width - 18
    for steps, colour in ((room.document, DOCUMENT), (room.query, QUERY)):
        for step in reversed([step.strip() for step in steps.split(",") if step.strip()]):
            circles.append(
                f'<circle cx="{at:.1f}" cy="{y + 18:.1f}" r="11" fill="{colour}"/>'
                f'<text x="{at:.1f}" y="{y + 22.5:.1f}" font-size="12" fill="#ffffff" text-anchor="middle">'
                f"{step}</text>"
            )
            at -= 26
    size = f"{files} files" if files > 1 else "1 file"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="6" fill="#f4f6f8" stroke="#8899aa"/>'
        f'<text x="{x + 12:.1f}" y="{y + 23:.1f}" font-size="15" font-weight="bold" fill="#222222">{room.name}</text>'
        f'<text x="{x + 12:.1f}" y="{y + 41:.1f}" font-size="12" fill="#444444">{escape(room.holds)}</text>'
        f'<text x="{x + 12:.1f}" y="{y + 57:.1f}" font-size="11" fill="#777777">{size}</text>' + "".join(circles)
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
    print(PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE)
