"""Whether an index survives kills, full disks and damage. tests/test_crash.py is a short run of it.

    python tests/soak.py --minutes 10

Processes change an index and are killed (SIGKILL) at random moments, at every step of a change, and by a full disk;
files are damaged. After each event the index must open at the last committed state, with every
document of it found, and after the next change nothing may be left over. Builds that encode are killed again and again
at random moments, and must encode no text twice. Prints the number of events of each kind.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from conftest import random_text

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.storage import salvage
from secateurs.storage.manifest import PARTS

VERBS = ("add", "update", "update_metadata", "delete", "compact", "build")
CONTENTS = 10**6
State = dict[str, int]  # docno -> the seed in its metadata; modulo CONTENTS it is the seed of its content
_fork = multiprocessing.get_context("fork")  # what is compiled and imported already need not be again


def document(docno: str, seed: int) -> Document:
    content = seed % CONTENTS
    encoded = random_text(np.random.default_rng(content), 3 + content % 5)
    return Document(docno, f"{docno} {content}", {"seed": seed}, encoded)


def plan(rng: random.Random, state: State, verb: str | None = None) -> tuple[str, State, State]:
    """A change: verb, the documents it is given, and the state after it."""
    verb = verb or rng.choice(VERBS)
    count = rng.randint(1, 12)
    if verb == "delete" and state:
        given = {docno: state[docno] for docno in rng.sample(sorted(state), min(count, len(state)))}
        return verb, given, {docno: seed for docno, seed in state.items() if docno not in given}
    if verb == "add":
        given = {f"n{rng.randrange(10**9)}": rng.randrange(10**6) for _ in range(count)}
        return verb, given, state | given
    if verb == "build":
        given = {f"b{i}": rng.randrange(10**6) for i in range(4 * count)}
        return verb, given, given
    if verb == "update" and state:
        given = {docno: rng.randrange(10**6) for docno in rng.sample(sorted(state), min(count, len(state)))}
        given |= {f"n{rng.randrange(10**9)}": rng.randrange(10**6)}
        return verb, given, state | given
    if verb == "update_metadata" and state:
        docnos = rng.sample(sorted(state), min(count, len(state)))
        given = {docno: state[docno] + CONTENTS for docno in docnos}
        return verb, given, state | given
    return "compact", {}, state


def carry_out(path: Path, verb: str, given: State) -> None:
    documents = [document(docno, seed) for docno, seed in given.items()]
    if verb == "build":
        Index.build(path, documents, encoder=None, gather=("cells", "faiss", "text"), overwrite=True)
        return
    index = Index(path)
    if verb == "delete":
        index.delete(given)
    elif verb == "compact":
        index.compact()
    elif verb == "update_metadata":
        index.update_metadata({docno: {"seed": seed} for docno, seed in given.items()})
    else:
        getattr(index, verb)(documents)


def verify(path: Path, *possible: State) -> State:
    """The state the index is in: one of these, whole, and every document of it is found; else AssertionError."""
    index = Index(path)
    held = {item.docno: int(item.metadata["seed"]) for item in index.documents()}
    assert held in possible, f"{len(held)} documents, which is no committed state"
    index.check()
    assert all(item.text == f"{item.docno} {held[item.docno] % CONTENTS}" for item in index.documents())
    for docno, seed in list(held.items())[:: 1 + len(held) // 8]:
        expected = document(docno, seed)
        assert expected.encoded is not None
        for gather in ("cells", "exhaustive"):
            hits = index.search(expected.encoded, k=3, gather=gather, nprobe=1000, candidates=10_000)
            best = [hit.docno for hit in hits if hit.score >= hits[0].score - 0.05]
            assert docno in best, f"{docno} is not found with gather={gather!r}"
        # Its text is its docno and seed, which another document may have too.
        by_words = replace(expected.encoded, text=expected.text)
        assert docno in index.candidates(by_words, gather="text", candidates=10_000), f"{docno} is not found by words"
    return held


def verify_nothing_is_left_over(path: Path) -> None:
    index = Index(path)
    there = {(part, folder.name) for part in PARTS for folder in (path / part).glob("*")}
    assert there == set(index.manifest.named()), "something is left over"
    assert {file.name for file in path.parent.iterdir()} <= {path.name, "journal"}, "something is left beside the index"
    assert not list(path.glob("*.new"))


def _work(path: Path, state: State, seed: int, journal: Path) -> None:
    rng = random.Random(seed)
    with journal.open("ab", buffering=0) as file:
        while True:
            verb, given, after = plan(rng, state)
            file.write(json.dumps([verb, given, after]).encode() + b"\n")
            carry_out(path, verb, given)
            file.write(b"done\n")
            state = after


def kill_at_random(path: Path, state: State, rng: random.Random, counts: Counter[str]) -> State:
    """Let a process change the index again and again, and kill it."""
    journal = path.parent / "journal"
    journal.write_bytes(b"")
    process = _fork.Process(target=_work, args=(path, state, rng.randrange(10**9), journal))
    process.start()
    time.sleep(rng.uniform(0.005, 0.6))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    possible = [state]
    for line in journal.read_bytes().split(b"\n")[:-1]:
        if line == b"done":
            del possible[:-1]
            counts["changes"] += 1
        else:
            verb, _, after = json.loads(line)
            possible.append(after)
    if len(possible) > 1:
        counts[f"killed during {verb}"] += 1
    counts["kills"] += 1
    return verify(path, *possible)


def _die_at(step: int, path: Path, verb: str, given: State) -> None:
    """Carry out a change, and kill this process before its n-th step to the disk."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return instead

    os.fsync, os.rmdir, os.unlink = counted(os.fsync), counted(os.rmdir), counted(os.unlink)
    Path.rename, Path.replace, Path.mkdir = map(counted, (Path.rename, Path.replace, Path.mkdir))  # type: ignore
    np.save = counted(np.save)
    carry_out(path, verb, given)
    os._exit(0)


def kill_at_every_step(path: Path, state: State, rng: random.Random, verb: str, counts: Counter[str]) -> State:
    """Kill one change at its first step to the disk, then at its second, until it gets through."""
    for step in range(10_000):
        verb, given, after = plan(rng, state, verb)
        process = _fork.Process(target=_die_at, args=(step, path, verb, given))
        process.start()
        process.join()
        if process.exitcode == 0:
            counts["changes"] += 1
            return verify(path, after)
        assert process.exitcode == -signal.SIGKILL, f"{verb} ended by itself: {process.exitcode}"
        counts["kills"] += 1
        counts[f"killed during {verb}"] += 1
        state = verify(path, state, after)
    raise AssertionError(f"{verb} never got through")


class _SlowEncoder:
    """Gives a text its embeddings after a pause, and notes in a file which texts it was given."""

    dim = 16
    spec = {"kind": "slow", "model": "slow", "fingerprint": "0123456789abcdef"}  # noqa: RUF012

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        with self._notes.open("ab", buffering=0) as file:
            for text in texts:
                time.sleep(0.002)
                yield self.encode_query(text)
                file.write(f"{text}\n".encode())  # the text is staged when the next one is asked for

    def encode_query(self, text: str) -> EncodedText:
        return random_text(np.random.default_rng(list(text.encode())), 3 + len(text) % 5)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def build_in_several_runs(folder: Path, rng: random.Random, counts: Counter[str]) -> None:
    """Kill a build that encodes, start it again, and so on until it is finished: no text is encoded twice."""
    folder.mkdir()
    path, notes = folder / "r.sec", folder / "notes"
    documents = [{"docno": f"r{number}", "text": f"{number} {rng.random()}"} for number in range(rng.randint(40, 120))]
    fresh = folder / "fresh.sec"
    _build_encoding(fresh, documents, folder / "other notes")
    longest = 0.3  # seconds; more from run to run, because finishing takes longer than that on a busy machine
    while not path.exists():
        process = _fork.Process(target=_build_encoding, args=(path, documents, notes))
        process.start()
        process.join(rng.uniform(0.02, longest))
        longest *= 1.1
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            counts["kills"] += 1
            counts["killed during a build that encodes"] += 1
    assert max(Counter(notes.read_text().splitlines()).values()) == 1, "a text that was staged was encoded again"
    assert _arrays(path) == _arrays(fresh), "the index is not that of a build without interruption"
    Index(path).check()
    _build_encoding(path, documents, notes)  # the last process may have been killed while it removed what it had staged
    assert {file.name for file in folder.iterdir()} == {path.name, fresh.name, "notes", "other notes"}, (
        "something is left over"
    )
    shutil.rmtree(folder)


def _build_encoding(path: Path, documents: list[dict[str, str]], notes: Path) -> None:
    salvage.WORTH_KEEPING = 1  # these builds are small
    salvage._BEING_MADE = 0.0  # and no other process builds here
    Index.build(path, documents, encoder=_SlowEncoder(notes), progress=False, overwrite=True)


def _arrays(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for part in PARTS for file in path.glob(f"{part}/*/*.npy")}


def _limited(path: Path, verb: str, given: State, most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        carry_out(path, verb, given)
    except (SecateursError, OSError):
        os._exit(7)
    except BaseException:
        traceback.print_exc()
        os._exit(8)
    os._exit(0)


def no_room(path: Path, state: State, rng: random.Random, counts: Counter[str]) -> State:
    """Files may not grow beyond a limit: the change fails with an error that says so, or it is done."""
    verb, given, after = plan(rng, state)
    process = _fork.Process(target=_limited, args=(path, verb, given, rng.choice((0, 100, 4096, 8192, 12_000, 30_000))))
    process.start()
    process.join()
    assert process.exitcode in (0, 7), f"{verb} without room: exit code {process.exitcode}"
    counts["changes without room" if process.exitcode == 7 else "changes"] += 1
    return verify(path, after if process.exitcode == 0 else state, state)


def answers(path: Path) -> list[Any]:
    index = Index(path)
    rng = np.random.default_rng(5)
    given: list[Any] = []
    for gather in ("cells", "faiss", "exhaustive"):
        query = random_text(rng, 4)
        given.append(index.search(query, gather=gather).hits)
        given.append(index.search(query, gather=gather, where="seed >= 500000").hits)
    by_words = replace(query, text="b1 new 4 b3")
    given.append(index.search(by_words, gather="text").hits)
    given.append(index.search(by_words, gather="cells+text", fuse="rrf").hits)
    return [*given, len(index), "missing" in index]


def damage(path: Path, rng: random.Random, counts: Counter[str]) -> None:
    """Flip a bit or cut a file short, anywhere: the answers are right, or an error says what is wrong."""
    right = answers(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sec"
        shutil.copytree(path, copy)
        files = [file for file in copy.rglob("*") if file.is_file() and file.stat().st_size]
        victim = rng.choice(files)
        content = bytearray(victim.read_bytes())
        if rng.random() < 0.2:
            content = content[: rng.randrange(len(content))]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        victim.write_bytes(content)
        try:
            assert answers(copy) == right, f"{victim.relative_to(copy)} was damaged and an answer changed"
            counts["damaged files that did not matter"] += 1
        except SecateursError:
            counts["damaged files found"] += 1


def soak(folder: Path, seconds: float, seed: int, report: Callable[[Counter[str]], None]) -> Counter[str]:
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    path = folder / "i.sec"
    state = {f"b{i}": i for i in range(30)}
    carry_out(path, "build", state)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _ in range(5):
            state = kill_at_random(path, state, rng, counts)
            state = no_room(path, state, rng, counts)
        state = kill_at_every_step(path, state, rng, rng.choice(VERBS), counts)
        build_in_several_runs(folder / "runs", rng, counts)
        for _ in range(5):
            damage(path, rng, counts)
        verb, given, state = plan(rng, state, "add" if len(state) < 100 else "build")
        carry_out(path, verb, given)
        counts["changes"] += 1
        verify(path, state)
        verify_nothing_is_left_over(path)
        counts["checks that no file was left over"] += 1
        report(counts)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="See whether an index survives kills, full disks and damage.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    def report(counts: Counter[str]) -> None:
        sys.stderr.write(f"\r{counts['kills']:,} kills, {counts['changes']:,} changes")

    with tempfile.TemporaryDirectory() as folder:
        counts = soak(Path(folder), 60 * options.minutes, options.seed, report)
    sys.stderr.write("\n")
    print("| event | times |\n|---|---|")
    for name, count in sorted(counts.items()):
        print(f"| {name} | {count:,} |")
    print("| documents lost | 0 |")  # a lost document ends this with an AssertionError


if __name__ == "__main__":
    main()
