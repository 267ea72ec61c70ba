"""Names of the files that ways of gathering keep in a segment; apart, so that knowing them loads no engine."""

CENTROIDS, OFFSETS, DOCUMENTS = CELLS = ("cell_centroids.npy", "cell_offsets.npy", "cell_documents.npy")
GROUPS = "cell_groups.npy"  # where there are very many cells
CELLS_OF_EMBEDDINGS = "embedding_cells.npy"
FAISS = "faiss.index"
FILES_OF = {"cells": CELLS, "faiss": (FAISS,)}
