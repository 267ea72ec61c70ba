"""Takes the pictures of the explorer page that the documentation shows.

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
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
QUERY = "how do I read a zip archive"
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
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                folder / name, optimize=True
            )
            print(f"{folder / name}: {(folder / name).stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
