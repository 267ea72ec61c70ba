"""For `mkdocs build`: pages of the site from files beside docs/, and links that lead out of docs/.

The files are written to be read in the repository. On the site README.md is the home page, and a link to a source file,
which the site does not have, becomes its name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for name, page in PAGES.items():
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_LINK.sub(_from_root, text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _LINK.sub(_from_docs, markdown)


def _from_root(link: re.Match[str]) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    return f"[{text}]({PAGES[target]}{anchor})" if target in PAGES else link[0]


def _from_docs(link: re.Match[str]) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    if not target.startswith("../"):
        return link[0]
    page = PAGES.get(target.removeprefix("../"))
    return f"[{text}]({page}{anchor})" if page else f"`{text}`"
