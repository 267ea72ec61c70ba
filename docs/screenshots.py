"""Takes the pictures of the explorer page and of a notebook that the documentation shows.

    python docs/screenshots.py demo.sec

Needs a chromium and  pip install playwright pillow. The pictures go to docs/images.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from secateurs import Index

IMAGES = Path(__file__).parent / "images"
QUERY = "how do I read a zip archive"
NOTEBOOK = (
    "ranking = index.search(QUERY, p=3); ranking[:3]",
    "index.explain(QUERY, ranking[0].docno, p=3)",
)
SHOTS = {  # name: width, height, colours, and whether a map is open
    "explorer.png": (1200, 1290, "light", True),
    "explorer-phone.png": (390, 844, "dark", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    command = [sys.executable, "-m", "secateurs", "serve", str(options.index), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = next((int(found[1]) for line in server.stdout if (found := re.search(r":(\d+)/", line))), None)
        if port is None:
            sys.exit("the server did not start")
        take(f"http://127.0.0.1:{port}/#{urlencode({'q': QUERY, 'p': 3})}", options.out)
    finally:
        server.terminate()
        server.wait()
    take_notebook(options.index, options.out)


def take(address: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, colours, with_map) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            page.goto(address)
            page.wait_for_selector(".curve")
            if with_map:
                page.get_by_role("button", name="Why?").first.click()
                page.wait_for_selector(".map")
            if width < 600:
                page.locator("#results-title").scroll_into_view_if_needed()
                page.locator(".chips").evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 50)")
            save(page.screenshot(), folder / name)
        browser.close()


def take_notebook(path: Path, folder: Path) -> None:
    """The HTML views as cells: each line of Python, and what a notebook shows below it."""
    names: dict[str, Any] = {"index": Index(path), "QUERY": QUERY}
    names["index"].search(QUERY)  # the first search of a process is slower
    cells = []
    for line in NOTEBOOK:
        before, _, last = line.rpartition("; ")
        exec(before, names)
        cells.append(f"<pre>{escape(line.replace('QUERY', repr(QUERY)))}</pre>{eval(last, names)._repr_html_()}")
    style = "body { margin: 16px 24px } pre { background: #f3f4f1; padding: 8px 10px; font-size: 13px }"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 940, "height": 400}, color_scheme="light")
        page.set_content(f"<meta charset=utf-8><style>{style}</style>{''.join(cells)}")
        save(page.screenshot(full_page=True), folder / "notebook.png")
        browser.close()


def save(picture: bytes, path: Path) -> None:
    colours = Image.open(io.BytesIO(picture)).convert("RGB")
    colours.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
