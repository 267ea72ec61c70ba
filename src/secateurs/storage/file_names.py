"""The names of the files in the folders of an index; manifest.py says what each holds."""

# segments/
EMBEDDINGS = "embeddings.npy"
BLOCKS = "blocks.npy"
REFINEMENTS = "refinements.npy"
REFINEMENT_BLOCKS = "refinement_blocks.npy"
OFFSETS = "offsets.npy"
TOKEN_IDS = "token_ids.npy"
TOKEN_BLOCKS = "token_blocks.npy"
TOKEN_KINDS = "token_kinds.npy"
POSITION_OFFSETS = "position_offsets.npy"
POSITION_ROWS = "position_rows.npy"
FREQUENCIES = "frequencies.npy"  # also in deletions/
DOCUMENTS = "documents.sqlite"
CODE_NUMBERS = "code_numbers.npy"
CELL_OFFSETS = "cell_offsets.npy"
CELL_DOCUMENTS = "cell_documents.npy"
SUMMARIES = "summaries.npy"
FAISS = "faiss.index"

# codebooks/
CENTRE = "centre.npy"
CELL_CENTROIDS = "cell_centroids.npy"
CELL_GROUPS = "cell_groups.npy"
CODE_CENTROIDS = "code_centroids.npy"
CODE_LEVELS = "code_levels.npy"
BACKGROUND = "background.npy"

# deletions/
NUMBERS = "numbers.npy"

CELLS = (CELL_CENTROIDS, CELL_OFFSETS, CELL_DOCUMENTS)  # what gather="cells" cannot do without
