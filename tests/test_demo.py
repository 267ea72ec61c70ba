"""The demo's collection is the standard library on this machine."""

from collections import Counter

from secateurs.demo import standard_library


def test_the_standard_library_has_thousands_of_documented_things() -> None:
    documents = standard_library()
    assert len(documents) > 3000
    assert len({document["docno"] for document in documents}) == len(documents)
    kinds = Counter(document["kind"] for document in documents)
    assert min(kinds[kind] for kind in ("module", "class", "function", "method")) > 100


def test_documents_are_named_and_worded_like_their_source() -> None:
    documents = {document["docno"]: document["text"] for document in standard_library()}
    assert documents["shutil.rmtree"].startswith("shutil.rmtree(path, ignore_errors, onerror")
    assert "Recursively delete a directory tree." in documents["shutil.rmtree"]
    assert "math.isclose" in documents
