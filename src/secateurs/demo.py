"""The demo's collection: the documentation strings of the standard library of this Python.

Modules written in Python are parsed, not imported, so that none of their code runs; a few that are written in C have no
source to parse and are imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = (
    "how do I read a zip archive",
    "wait for several threads to finish",
    "parse command line arguments",
    "what is the difference between two dates",
    "send an email over an encrypted connection",
    "find the most common elements of a list",
)

_SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__"}
_WRITTEN_IN_C = ("builtins", "math", "cmath", "itertools", "time", "zlib", "gc", "sys", "select", "array", "binascii")
_FEWEST_WORDS = 4


def standard_library() -> list[dict[str, str]]:
    """One document per module, class, function and method that says what it does."""
    documents: dict[str, dict[str, str]] = {}
    for docno, kind, signature, text in [*_parsed(), *_imported()]:
        if len(text.split()) >= _FEWEST_WORDS and docno not in documents:
            documents[docno] = {
                "docno": docno,
                "text": f"{signature}: {' '.join(text.split())}",
                "kind": kind,
                "python": platform.python_version(),
            }
    return list(documents.values())


def _parsed() -> Iterator[tuple[str, str, str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _SKIPPED_FOLDERS.intersection(parts) or any(part.startswith(("_", "config-")) for part in parts[:1]):
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # a template, or a file that is broken on purpose
        yield from _documented(tree, ".".join(parts), "module", ".".join(parts))


def _documented(node: ast.AST, docno: str, kind: str, signature: str) -> Iterator[tuple[str, str, str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield docno, kind, signature, text
    if not isinstance(node, ast.Module | ast.ClassDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            name = f"{docno}.{child.name}"
            yield from _documented(child, name, "class", f"class {name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            name = f"{docno}.{child.name}"
            arguments = ", ".join(argument.arg for argument in child.args.args if argument.arg not in ("self", "cls"))
            kind = "method" if isinstance(node, ast.ClassDef) else "function"
            yield from _documented(child, name, kind, f"{name}({arguments})")


def _imported() -> Iterator[tuple[str, str, str, str]]:
    for module_name in _WRITTEN_IN_C:
        module = importlib.import_module(module_name)
        yield module_name, "module", module_name, inspect.getdoc(module) or ""
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value):
                continue
            docno = name if module_name == "builtins" else f"{module_name}.{name}"
            kind = "class" if isinstance(value, type) else "function"
            yield docno, kind, docno, inspect.getdoc(value) or ""
            for method, function in vars(value).items() if isinstance(value, type) else ():
                if not method.startswith("_") and callable(function):
                    yield f"{docno}.{method}", "method", f"{docno}.{method}", inspect.getdoc(function) or ""
