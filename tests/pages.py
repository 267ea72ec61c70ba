"""README and docs as the tests read them: the blocks of code of a page, or of a section of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = {page.name: page.read_text("utf-8") for page in PAGES}

# Sections whose Python needs a server or torch: the file of tests that runs it.
RUN_ELSEWHERE = {
    ("integrations.md", "DSPy"): "test_dspy.py",
    ("transfer.md", "The Hugging Face Hub"): "test_hub.py",
    ("integrations.md", "PyLate"): "test_pylate.py",
    ("integrations.md", "MTEB"): "test_mteb.py",
}


def blocks(page: str, language: str, section: str | None = None) -> list[str]:
    """The blocks of a language, between a heading of the second level and the next if a section is named."""
    text = PROSE[page]
    if section is not None:
        _, _, below = text.partition(f"\n## {section}\n")
        text = re.split(r"^## ", below, maxsplit=1, flags=re.MULTILINE)[0]
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]
