"""README and docs: their Python runs, their commands exist, and every public name is written about."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, PROSE, ROOT, RUN_ELSEWHERE, blocks

import secateurs
import secateurs.lab

WITH_PYTHON = [page for page in PROSE if blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page: str, tmp_path: Path, index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if '"demo.sec"' in PROSE[page]:
        shutil.copytree(index_path, "demo.sec")
    elsewhere = [block for place in RUN_ELSEWHERE if place[0] == page for block in blocks(page, "python", place[1])]
    namespace: dict[str, object] = {}
    try:
        for block in blocks(page, "python"):
            if block not in elsewhere:
                exec(compile(block, page, "exec"), namespace)
    finally:
        if "ray" in sys.modules:  # no later test should be connected to what was started here
            sys.modules["ray"].shutdown()


@pytest.mark.parametrize(("place", "file"), RUN_ELSEWHERE.items())
def test_a_section_whose_python_does_not_run_here_runs_in_the_tests_of_its_package(
    place: tuple[str, str], file: str
) -> None:
    page, heading = place
    assert blocks(page, "python", heading)
    assert f'blocks("{page}", "python", "{heading}")' in (Path(__file__).parent / file).read_text("utf-8")


def test_the_pages_that_should_show_python_do() -> None:
    pages = {"README.md", "quickstart.md", "how-it-works.md", "encoders.md", "pyterrier.md", "integrations.md"}
    assert pages | {"databases.md"} <= set(WITH_PYTHON)


def test_every_command_shown_exists_with_the_options_shown() -> None:
    import typer.main

    from secateurs.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = [
        shlex.split(line)
        for page in PROSE
        for block in blocks(page, "")
        for line in block.splitlines()
        if line.startswith("secateurs ")
    ]
    lines = [line for text in PROSE.values() for line in text.splitlines() if line.startswith("secateurs ")]
    assert len(shown) == len(lines) > 8
    for words in shown:
        command, given = commands[words[1]], words[2:]
        if hasattr(command, "commands"):  # a group, such as  secateurs shard build
            command, given = command.commands[words[2]], words[3:]
        known = {option for parameter in command.params for option in parameter.opts}
        for word in given:
            assert not word.startswith("-") or word in known or word == "-", f"{word} in {' '.join(words)}"


def test_every_command_and_public_name_is_documented() -> None:
    everything = "\n".join(PROSE.values())
    for name in set(secateurs.__all__) - {"__version__"}:
        assert re.search(rf"\b{name}\b", everything), name
    for name in secateurs.lab.__all__:
        assert re.search(rf"\b{name}\b", PROSE["lab.md"]), name
    commands = ("index", "add", "update", "delete", "compact", "check", "search", "explain", "info", "demo", "get")
    for command in (
        *commands,
        "background",
        "export",
        "import",
        "push",
        "pull",
        "rerank",
        "serve",
        "mcp",
        "evaluate",
        "report",
        "reproduce",
        "shard build",
        "shard info",
    ):
        headings = [line for line in PROSE["command-line.md"].splitlines() if line.startswith("## secateurs ")]
        assert any(re.search(rf"\b{command}\b", line) for line in headings), command


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{target} in {page.name}"


def test_the_site_builds_and_leaves_no_page_out(tmp_path: Path) -> None:
    """Strict: a link to a page or heading that is not there, or a page that is not in the menu, fails.

    Not --quiet, with which mkdocs counts no warnings.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} | {"index", "contributing", "changelog", "security"}
    assert pages <= {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert 'href="quickstart.html"' in (tmp_path / "site" / "index.html").read_text("utf-8")


def test_both_commands_are_in_the_first_thirty_lines_of_the_readme() -> None:
    opening = PROSE["README.md"].splitlines()[:30]
    assert any("make demo" in line for line in opening)
    assert any("make test" in line for line in opening)


def test_nothing_speaks_of_the_machine_it_was_written_on() -> None:
    home = os.path.expanduser("~")
    for name, text in PROSE.items():
        assert home == "/" or f"{home}/" not in text, name
