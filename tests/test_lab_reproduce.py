"""Reproductions: what comes with the package is whole, runs, and can disagree."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from secateurs import Index, SecateursError
from secateurs.lab import Results, find_reproduction, reproduce, reproductions
from secateurs.lab.built_in_collections import standard_library, synthetic
from secateurs.lab.expectations import Verdict
from secateurs.lab.reproduction import Reproduced
from secateurs.lab.reproduction import _collection as collection_of
from secateurs.lab.reproduction import _index as index_of
from secateurs.lab.sweeps import sweep

TINY = """
title: t
about: a
collection: {made: synthetic}
gather: [faiss]
measures: [RR]
sweep: ["p=1,all", order=icf, gather=faiss, k_prime=50]
baseline: p=all
expected:
"""


def test_reproductions_of_the_paper_come_with_the_package() -> None:
    known = {reproduction.name: reproduction for reproduction in reproductions()}
    of_the_paper = {f"trec2019-{name}" for name in ("p3", "figure-2", "figure-3", "depth")}
    assert of_the_paper | {"standard-library", "synthetic"} <= known.keys()
    figure = known["trec2019-figure-3"]
    settings = sweep(*figure.sweep, k=figure.k).values()
    assert {given.k for given in settings} == {1000}
    assert [(given.p, given.order) for given in settings] == [(p, o) for p in range(1, 33) for o in ("first", "icf")]
    assert {(given.gather, given.k_prime, given.nprobe) for given in settings} == {("faiss", 1000, 10)}
    for reproduction in known.values():
        assert reproduction.expected
        for expectation in reproduction.expected:
            assert expectation.get("measure", reproduction.measures[0]) in reproduction.measures


@pytest.mark.parametrize("name", ["synthetic", "standard-library"])
def test_reproductions_on_built_in_collections_agree(name: str, tmp_path: Path) -> None:
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
        ("title: [", r"t\.yaml: not YAML"),
        ("title: t", "a reproduction has about, baseline"),
        (TINY + "  - {setting: p=1, hope: 1}", r"t\.yaml: not an expectation: .* setting, measure, no_loss; "),
        (TINY.replace("made: synthetic", "path: /x") + "  - {setting: p=1, saves: 1}", "a collection is"),
    ],
)
def test_a_wrong_file_is_refused_with_a_message(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(content)
    with pytest.raises(SecateursError, match=message):
        find_reproduction(str(tmp_path / "t.yaml"))


RIGHT = TINY + "  - {setting: p=1, saves: 0.1}\n"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("title: t", "title: [t]", "title is a text"),
        ("measures: [RR]", "measures: RR", "measures is a list"),
        ("measures: [RR]", "measures: [3]", "measures is a list of texts"),
        ("measures: [RR]", "measures: []", "measures is a list with something in it"),
        ("{made: synthetic}", "synthetic", "a collection is"),
        ("{made: synthetic}", "{made: 3}", "a collection has a name"),
        ("about: a", "about: a\nk: many", "k is a whole number"),
        ("{setting: p=1, saves: 0.1}", "3", "not an expectation"),
        ("saves: 0.1", "saves: most", "not an expectation"),
        ("saves: 0.1", "measure: RR, no_loss: false", "not an expectation"),
        ("title: t", "title: \udcff", "not YAML"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_a_message(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(RIGHT)
    assert find_reproduction(str(tmp_path / "t.yaml")).k == 1000
    (tmp_path / "t.yaml").write_text(RIGHT.replace(before, after), "utf-8", "surrogateescape")
    with pytest.raises(SecateursError, match=message):
        find_reproduction(str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("setting: p=1", "setting: p=7", "no setting is 'p=7'"),
        ("saves: 0.1", "measure: RR, as_good_as: bm25", "no setting is 'bm25'"),
        ("saves: 0.1", "measure: AP, no_loss: true", "'AP' is expected but not measured: RR"),
        ("baseline: p=all", "baseline: p=9", "no setting is 'p=9'"),
        ("measures: [RR]", "measures: [goodness]", "'goodness' is no measure"),
    ],
)
def test_an_unknown_setting_or_measure_is_an_error_before_anything_is_built(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(RIGHT.replace(before, after))
    with pytest.raises(SecateursError, match=message):
        reproduce(find_reproduction(str(tmp_path / "t.yaml")), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_results_do_not_agree_if_every_expectation_was_skipped() -> None:
    results = Results([], [], {})
    assert not Reproduced(results, [Verdict("x", None)]).agrees
    assert Reproduced(results, [Verdict("x", None), Verdict("y", True)]).agrees


def test_an_index_of_another_collection_is_not_taken_for_this_one(tmp_path: Path) -> None:
    claim = replace(find_reproduction("trec2019-p3"), gather=[])
    collection = tmp_path / "collection"
    collection.mkdir()
    (collection / "corpus.jsonl").write_text('{"docno": "d1", "text": "goldfish grow"}\n')
    (collection / "queries.tsv").write_text("1\tdo goldfish grow\n")
    (collection / "qrels.txt").write_text("1 0 d1 2\n")
    corpus, topics = collection_of(claim, collection)
    assert topics.relevant("1", 2) == {"d1"}
    built = index_of(claim, tmp_path / "x", corpus, None, False)
    moved = collection.rename(tmp_path / "moved")
    corpus, _ = collection_of(claim, moved)
    assert index_of(claim, tmp_path / "x", corpus, None, False).manifest == built.manifest
    (moved / "corpus.jsonl").write_text('{"docno": "d1", "text": "cats sleep"}\n')
    with pytest.raises(SecateursError, match="was made of another collection"):
        reproduce(claim, tmp_path / "x", collection=moved)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_beir_is_a_collection(tmp_path: Path, suffix: str) -> None:
    def write(name: str, content: str) -> None:
        (tmp_path / f"{name}{suffix}").write_bytes(gzip.compress(content.encode()) if suffix else content.encode())

    write("corpus.jsonl", '{"_id": "d1", "title": "", "text": "goldfish grow"}\n')
    write("queries.jsonl", '{"_id": "1", "text": "do goldfish grow"}\n{"_id": "2", "text": "not judged"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td1\t1\n")
    corpus, topics = collection_of(find_reproduction("trec2019-p3"), tmp_path)
    assert corpus == tmp_path / f"corpus.jsonl{suffix}"
    assert (topics.queries, topics.qrels) == ({"1": "do goldfish grow"}, {"1": {"d1": 1}})


def test_an_index_that_is_given_is_asked_with_every_mask(tmp_path: Path) -> None:
    Index.build(tmp_path / "i.sec", [{"docno": "a", "text": "Cats sleep."}])
    assert len(Index(tmp_path / "i.sec").encode_query("do cats sleep")) < 32
    given = index_of(find_reproduction("trec2019-p3"), tmp_path, None, tmp_path / "i.sec", False)
    assert len(given.encode_query("do cats sleep")) == 32


def test_the_synthetic_collection_is_always_the_same() -> None:
    first, second = synthetic(), synthetic()
    assert first.topics.fingerprint() == second.topics.fingerprint()
    # the first words of the first query, as NumPy's frozen RandomState draws them
    assert next(iter(first.topics.queries.values())) == "w1 w12 w41 w52 w785 w0"


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
    with pytest.raises(SecateursError, match="has a built-in collection"):
        reproduce(find_reproduction("synthetic"), tmp_path / "x", collection=tmp_path)
