"""Makes the PLAID indexes beside this file:  python make.py   (needs torch, colbert-ai 0.2.22 and fast-plaid 1.7.0)

colbert/        five documents of random vectors, compressed and written by ColBERT's own codec and index saver
expected.npy    what ColBERT's codec decodes from it
fast-plaid/     the same arrays under the names of fast-plaid, then opened by fast-plaid's loader, which moves the
                rows of the two chunks to merged_codes.npy and merged_residuals.npy
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from colbert.indexing.codecs.residual import ResidualCodec
from colbert.indexing.index_saver import IndexSaver
from colbert.infra.config import ColBERTConfig
from fast_plaid.search.load import _load_index_tensors_cpu

HERE = Path(__file__).parent
DIM, BITS, CHUNKS = 16, 2, ([3, 1, 4], [2, 5])


def unit(rows: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(rows, DIM), dim=-1)


def make_colbert(folder: Path) -> None:
    folder.mkdir()
    config = ColBERTConfig(dim=DIM, nbits=BITS)
    centroids, heldout = unit(8).half().float(), unit(200)
    residuals = (heldout - centroids[(heldout @ centroids.T).argmax(1)]).flatten()
    quantiles = torch.arange(2**BITS) / 2**BITS
    cutoffs, weights = residuals.quantile(quantiles[1:]), residuals.quantile(quantiles + 0.5 / 2**BITS)
    codec = ResidualCodec(config, centroids, residuals.abs().mean(), cutoffs, weights)
    codec.save(str(folder))
    saver = IndexSaver(SimpleNamespace(index_path_=str(folder)))
    first, decoded = 0, []
    for number, lengths in enumerate(CHUNKS):
        compressed = codec.compress(unit(sum(lengths)))
        saver._write_chunk_to_disk(number, first, compressed, lengths)
        decoded.append(codec.decompress(compressed).numpy())
        first += len(lengths)
    np.save(HERE / "expected.npy", np.concatenate(decoded).astype(np.float32))
    metadata = {"config": {"dim": DIM, "nbits": BITS}, "num_chunks": 2, "num_partitions": 8, "num_embeddings": 15}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def make_fast_plaid(folder: Path, source: Path) -> None:
    folder.mkdir()
    cutoffs, weights = torch.load(source / "buckets.pt")
    arrays = {
        "centroids": torch.load(source / "centroids.pt"),
        "bucket_cutoffs": cutoffs,
        "bucket_weights": weights,
        "avg_residual": torch.load(source / "avg_residual.pt").expand(DIM),
    }
    for number in range(len(CHUNKS)):
        arrays[f"{number}.codes"] = torch.load(source / f"{number}.codes.pt").long()
        arrays[f"{number}.residuals"] = torch.load(source / f"{number}.residuals.pt")
        shutil.copy(source / f"doclens.{number}.json", folder)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.numpy())
    (folder / "metadata.json").write_text(json.dumps({"num_chunks": 2, "nbits": BITS, "num_documents": 5}))
    _load_index_tensors_cpu(str(folder))


if __name__ == "__main__":
    torch.manual_seed(1)
    make_colbert(HERE / "colbert")
    make_fast_plaid(HERE / "fast-plaid", HERE / "colbert")
