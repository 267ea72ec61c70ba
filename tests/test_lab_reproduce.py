"""Reproductions: what comes with the package is whole, runs, and can disagree."""

from pathlib import Path

import pytest

from secateurs import SecateursError
from secateurs.lab import find_reproduction, reproduce, reproductions
from secateurs.lab.made import standard_library, synthetic
from secateurs.lab.sweeps import sweep

TINY = """
title: t
about: a
collection: {made: synthetic}
gather: [faiss]
measures: [RR]
sweep: ["p=1,all", gather=faiss, k_prime=50]
baseline: p=all
expected:
"""


def test_those_of_the_paper_come_with_the_package() -> None:
    known = {one.name: one for one in reproductions()}
    assert {"trec2019-p3", "trec2019-figure-2", "trec2019-figure-3", "standard-library", "synthetic"} <= known.keys()
    figure = known["trec2019-figure-3"]
    settings = sweep(*figure.sweep, k=figure.k)
    assert {one.k for one in settings} == {1000}
    assert [(one.p, one.order) for one in settings] == [(p, o) for p in range(1, 33) for o in ("first", "icf")]
    assert {(one.gather, one.k_prime, one.nprobe) for one in settings} == {("faiss", 1000, 10)}
    for one in known.values():
        assert one.expected
        for expectation in one.expected:
            assert expectation.get("measure", one.measures[0]) in one.measures


@pytest.mark.parametrize("name", ["synthetic", "standard-library"])
def test_what_the_project_makes_itself_agrees(name: str, tmp_path: Path) -> None:
    done = reproduce(find_reproduction(name), tmp_path / "x")
    assert [verdict.text for verdict in done.verdicts if verdict.agrees is not True] == []
    assert "<!DOCTYPE html>" in (tmp_path / "x" / "report.html").read_text("utf-8")
    assert (tmp_path / "x" / "figures" / "documents.svg").is_file()


def test_a_reproduction_can_disagree_and_says_where(tmp_path: Path) -> None:
    lines = [
        "{setting: p=all, measure: RR, value: 0.5, tolerance: 0.1}",
        "{setting: p=all, measure: RR, value: 0.99, tolerance: 0.02}",
        "{setting: p=1, measure: RR, loss: true}",
        "{setting: p=1, measure: RR, no_loss: true}",
        "{setting: p=1, saves: 0.99}",
        "{setting: p=1, saves: 0.5}",
        "{setting: p=1, speed_up: 1000000}",
        "{setting: p=1, measure: RR, as_good_as: p=1}",
        "{setting: p=all, measure: RR, value: 0.5, tolerance: 0.1, documents: 41634}",
    ]
    (tmp_path / "t.yaml").write_text(TINY + "".join(f"  - {line}\n" for line in lines))
    done = reproduce(find_reproduction(str(tmp_path / "t.yaml")), tmp_path / "x")
    assert [verdict.agrees for verdict in done.verdicts] == [False, True, False, True, False, True, False, True, None]
    assert not done.agrees
    assert "expected 0.5000 +- 0.1" in done.verdicts[0].text
    assert "only of 41,634 documents; here are 480" in done.verdicts[-1].text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("title: [", "not YAML"),
        ("title: t", "a reproduction has about, baseline"),
        (TINY + "  - {setting: p=1, hope: 1}", "not an expectation"),
        (TINY.replace("made: synthetic", "path: /x") + "  - {setting: p=1, saves: 1}", "a collection is"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(content)
    with pytest.raises(SecateursError, match=message):
        find_reproduction(str(tmp_path / "t.yaml"))


def test_the_synthetic_collection_is_always_the_same() -> None:
    one, two = synthetic(), synthetic()
    assert one.topics.fingerprint() == two.topics.fingerprint()
    # the first words of the first query, as NumPy's frozen RandomState draws them
    assert next(iter(one.topics.queries.values())) == "w1 w12 w41 w52 w785 w0"


def test_known_items_of_the_standard_library_are_judged_without_their_first_sentence() -> None:
    made = standard_library(step=40, most_queries=1000)
    texts = {document.docno: document.text for document in made.documents}
    assert len(made.topics) > 20
    for qid, query in made.topics.queries.items():
        for docno in made.topics.qrels[qid]:
            assert f": {query}." not in texts[docno]


def test_a_folder_of_a_collection_stands_in_for_ir_datasets(tmp_path: Path) -> None:
    claim = find_reproduction("trec2019-p3")
    with pytest.raises(SecateursError, match="there is no folder"):
        reproduce(claim, tmp_path / "x", collection=tmp_path / "none")
    with pytest.raises(SecateursError, match="is no collection"):
        reproduce(claim, tmp_path / "x", collection=tmp_path)
    with pytest.raises(SecateursError, match="makes its own collection"):
        reproduce(find_reproduction("synthetic"), tmp_path / "x", collection=tmp_path)
