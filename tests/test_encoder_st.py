"""sentence-transformers models as encoders, on a tiny random ColBERT checkpoint that the test makes itself."""

import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from secateurs import Index, SecateursError, TokenKind, load_encoder

pytest.importorskip("sentence_transformers", reason='needs "secateurs[st]": run make test-torch')

from secateurs.encoders import Encoder
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.sentence_transformers import SentenceTransformersEncoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 32 dimensions, projected to 16, queries expanded to 12, punctuation skipped in documents."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(wheel_folder() / "tokenizer.json"), unk_token="[UNK]", model_max_length=64, **names
    )
    tokenizer.save_pretrained(folder / "backbone")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "backbone")
    modules = [
        Transformer(
            str(folder / "backbone"),
            document_length=24,
            query_expansion={"strategy": "min", "length": 12},
        ),
        Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(string.punctuation)),
        Normalize(),
    ]
    model = MultiVectorEncoder(modules=modules, prompts={"query": "[unused0] ", "document": "[unused1] "})
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def st_encoder(checkpoint: Path) -> Encoder:
    return load_encoder(str(checkpoint), "st")


def test_it_has_all_that_an_encoder_needs(st_encoder: Encoder) -> None:
    assert isinstance(st_encoder, Encoder)
    assert st_encoder.dim == 16
    assert st_encoder.spec["kind"] == "st"


def test_words_are_counted_as_documents_store_them(st_encoder: SentenceTransformersEncoder) -> None:
    texts = ["Goldfish, they grow!", "Cats sleep."]
    stored = [e.token_ids[e.token_kinds == TokenKind.WORD] for e in st_encoder.encode_documents(texts)]
    assert st_encoder.word_ids(texts).tolist() == np.concatenate(stored).tolist()
    assert len(st_encoder.vocabulary) == 16


def test_embeddings_are_those_of_the_model_itself(st_encoder: SentenceTransformersEncoder, checkpoint: Path) -> None:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(checkpoint))
    query = st_encoder.encode_query("do goldfish grow?")
    assert np.allclose(query.embeddings, model.encode_query("do goldfish grow?", convert_to_numpy=True), atol=1e-5)
    texts = ["Goldfish, they grow!", "Cats sleep.", "A much longer text about bees and flowers"]
    for text, encoded in zip(texts, st_encoder.encode_documents(texts), strict=True):
        assert np.allclose(encoded.embeddings, model.encode_document(text, convert_to_numpy=True), atol=1e-5)


def test_kinds_are_read_from_the_features(st_encoder: Encoder) -> None:
    query = st_encoder.encode_query("do goldfish grow?")
    kinds = [TokenKind(kind).name for kind in query.token_kinds]
    words = [st_encoder.token_text(int(i)) for i in query.token_ids]
    assert words[0] == "[CLS]"
    assert kinds[0] == "CLS"
    assert kinds[words.index("##fish")] == "WORD"
    assert kinds[words.index("?")] == "PUNCTUATION"
    assert kinds[words.index("[SEP]")] == "SEP"
    assert [k for k, w in zip(kinds, words, strict=True) if w == "[MASK]"] == ["MASK"] * words.count("[MASK]")
    assert kinds.count("MARKER") >= 1
    assert len(query) == 12 or "[MASK]" not in words


def test_documents_lose_the_skip_list_and_say_what_was_cut(st_encoder: Encoder) -> None:
    short, long = st_encoder.encode_documents(["Goldfish, they grow!", "word " * 100])
    assert TokenKind.PUNCTUATION not in short.token_kinds
    assert short.cut == 0
    assert len(long) <= 24
    assert long.cut > 70


def test_an_index_remembers_and_checks_its_model(
    st_encoder: SentenceTransformersEncoder, checkpoint: Path, tmp_path: Path
) -> None:
    documents = [{"docno": str(i), "text": text} for i, text in enumerate(["goldfish grow", "cats sleep", "bees"])]
    built = Index.build(tmp_path / "i.sec", documents, encoder=st_encoder)
    again = Index(tmp_path / "i.sec")
    assert again.search("goldfish", p=2).hits == built.search("goldfish", p=2).hits
    assert again.encoder.spec == st_encoder.spec


def test_queries_and_documents_are_encoded_on_several_threads_at_once(st_encoder: SentenceTransformersEncoder) -> None:
    """Every call sets the tokenizer's padding and truncation; without a lock, a thread raises "Already borrowed"."""
    texts = ["goldfish grow in their pond " * (i % 40) + "and sleep" for i in range(400)]
    expected = [encoded.embeddings for encoded in st_encoder.encode_documents(texts)]
    expected_query = st_encoder.encode_query("do goldfish grow").embeddings
    with ThreadPoolExecutor(8) as pool:
        documents = [pool.submit(lambda: list(st_encoder.encode_documents(texts))) for _ in range(4)]
        queries = [pool.submit(st_encoder.encode_query, "do goldfish grow") for _ in range(200)]
        for query in queries:
            assert np.array_equal(query.result().embeddings, expected_query)
        for batch in documents:
            for encoded, embeddings in zip(batch.result(), expected, strict=True):
                assert np.allclose(encoded.embeddings, embeddings, atol=1e-5)


def test_a_model_that_cannot_be_loaded_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match="cannot load"):
        load_encoder(str(tmp_path), "st")


def test_a_single_vector_model_is_a_baseline(checkpoint: Path, st_encoder: Encoder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from secateurs.lab import Query, baseline_systems

    backbone = str(checkpoint.parent / "backbone")  # a plain BERT gets mean pooling
    texts = {"fish": "Goldfish grow.", "cats": "Cats sleep for most of the day.", "bees": "Bees"}
    documents = [{"docno": docno, "text": text} for docno, text in texts.items()]
    index = Index.build(tmp_path / "three.sec", documents, encoder=st_encoder, gather=())
    (dense,) = baseline_systems(index, [f"dense:{backbone}"])
    found = dict(dense.search(Query("q", "do goldfish grow", st_encoder.encode_query("do goldfish grow")), set()).hits)
    model = SentenceTransformer(backbone)
    expected = model.similarity(model.encode("do goldfish grow"), model.encode(list(texts.values())))[0]
    assert found == pytest.approx(dict(zip(texts, expected.tolist(), strict=True)), abs=1e-5)
