"""What an experiment is given: measures, runs and topics, right and wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from secateurs import SecateursError
from secateurs.lab import read_run, read_topics, write_run
from secateurs.lab.measures import Measures, ranked


def test_measures_by_hand() -> None:
    measures = Measures(["nDCG@10", "AP", "RR@10", "R@1000", "AP(rel=2)"], {"q": {"a": 2, "b": 1, "c": 0}})
    values = measures.of("q", [("c", 3.0), ("a", 2.0), ("x", 1.5), ("b", 1.0)])
    ideal = 2 + 1 / np.log2(3)
    assert values["nDCG@10"] == pytest.approx((2 / np.log2(3) + 1 / np.log2(5)) / ideal)
    assert values["AP"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert (values["RR@10"], values["R@1000"], values["AP(rel=2)"]) == (0.5, 1.0, 0.5)
    assert set(measures.of("q", []).values()) == {0.0}


def test_equal_scores_are_ordered_as_by_trec_eval_for_every_measure() -> None:
    # trec_eval: of equal scores the larger docno comes first; RR@10 and RR come from different libraries
    qrels = {"q": {"b": 1}}
    ranking = ranked([("a", 1.0), ("b", 1.0), ("c", 1.0000000001), ("d", 0.5)])
    assert [docno for docno, _ in ranking] == ["c", "b", "a", "d"]
    assert set(Measures(["RR", "RR@10", "AP", "P@2"], qrels).of("q", ranking).values()) == {0.5}


@pytest.mark.parametrize("name", ["goodness", "nDCG@ten", "AP(", "R", "P@0", "nDCG@0", "AP(rel=0)", "P(foo=1)@5"])
def test_an_unknown_measure_is_refused(name: str) -> None:
    with pytest.raises(SecateursError, match=r"no measure of ir-measures|needs a cutoff|is at least 1"):
        Measures([name], {"q": {"a": 1}})


def test_a_measure_that_cannot_be_computed_is_named() -> None:
    with pytest.raises(SecateursError, match="ERR@10"):
        Measures(["AP", "ERR@10"], {"no number": {"a": 1}})


def test_a_run_file_is_read_by_score_and_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.run"
    write_run(path, [("q1", [("a", 2.0), ("b", 1.0)])])
    assert path.read_text() == "q1 Q0 a 1 2.000000 secateurs\nq1 Q0 b 2 1.000000 secateurs\n"
    path.write_text("q1 Q0 a 1 1.0 x\nq1 Q0 b 2 3.5 x\n")
    assert read_run(path) == {"q1": [("b", 3.5), ("a", 1.0)]}
    path.write_text("q1 Q0 a 1 2 x\nq1 Q0 b 2 -1.5e-3 x\nq1 Q0 c 3 2.0 x\n")
    assert read_run(path) == {"q1": [("c", 2.0), ("a", 2.0), ("b", -0.0015)]}
    for content, message in [
        ("q1 Q0 a 1 1.0\n", "line 1: has 5 columns and not 6"),
        ("q1 Q0 a 1 high x\n", "line 1: a score is a number"),
        ("q1 Q0 a 1 nan x\n", "line 1: a score is a number"),
        ("q1 Q0 a 1 1e999 x\n", "line 1: a score is a number"),
        ("q1 Q0 a 1 1_0 x\n", "line 1: a score is a number"),
        ("q1 Q0 a 1 1 x\nq1 Q0 a 2 0 x\n", "line 2: 'a' is in the ranking of 'q1' twice"),
        ("\n", "has no rankings"),
    ]:
        path.write_text(content)
        with pytest.raises(SecateursError, match=message):
            read_run(path)


def test_topics_are_the_judged_queries_and_their_sample_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("".join(f"{n}\tquery {n}\n" for n in range(50)))
    (tmp_path / "qrels").write_text("".join(f"{n} 0 d{n} {n % 3}\n" for n in range(1, 40)))
    topics = read_topics(str(tmp_path / "q.tsv"), str(tmp_path / "qrels"))
    assert len(topics) == 39
    assert topics.relevant("5", 2) == {"d5"}
    assert topics.relevant("4", 2) == set()
    assert list(topics.sample(5).queries) == list(topics.sample(5).queries)
    assert len(topics.sample(5)) == 5
    assert topics.sample(99) is topics
    assert topics.fingerprint() != topics.sample(5).fingerprint()
    for content, message in [
        ("1 0 d1\n", "line 1: has 3 columns and not 4"),
        ("1 0 d1 good\n", "line 1: a grade is a whole number"),
        ("x 0 d1 1\n", "no query has a judgement"),
        ("1 0 d1 1\n1 0 d1 1\n1 0 d1 2\n", "two grades for query '1': 1 and 2"),
        ("", "no query has a judgement"),
    ]:
        (tmp_path / "qrels").write_text(content)
        with pytest.raises(SecateursError, match=message):
            read_topics(str(tmp_path / "q.tsv"), str(tmp_path / "qrels"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1\tcats\ndo goldfish grow\n", "line 1 has a qid and a tab, line 2 has not"),
        ("1\tcats\n\tdo goldfish grow\n", "line 2: has no qid"),
        ("cats\ndo goldfish grow\n", "line 1: has no qid and tab"),
        ("1\tcats\n1\tdo goldfish grow\n", "line 2: qid '1' is already that of line 1"),
    ],
)
def test_a_query_to_be_judged_has_a_qid_that_no_other_has(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text(lines)
    (tmp_path / "qrels").write_text("2 0 d1 1\n")
    with pytest.raises(SecateursError, match=message):
        read_topics(str(tmp_path / "q.tsv"), str(tmp_path / "qrels"))


def test_topics_of_ir_datasets_and_what_can_go_wrong_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dataset:
        def queries_iter(self) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(query_id="1", default_text=lambda: "do goldfish grow")

        def qrels_iter(self) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(query_id="1", doc_id="fish", relevance=2)

    class Offline(Dataset):
        def qrels_iter(self) -> Iterator[SimpleNamespace]:
            raise RuntimeError("All download sources failed")

    known = {"fishes": Dataset(), "offline": Offline(), "no-qrels": object()}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=known.__getitem__))  # type: ignore[arg-type]
    topics = read_topics("ir_datasets:fishes", "ir_datasets:fishes")
    assert (topics.queries, topics.relevant("1", 2)) == ({"1": "do goldfish grow"}, {"fish"})
    for name, message in (
        ("offline", "cannot download 'offline'"),
        ("no-qrels", "has no 'no-qrels' with"),
        ("none", "has no 'none' with"),
    ):
        with pytest.raises(SecateursError, match=message):
            read_topics("ir_datasets:fishes", f"ir_datasets:{name}")
