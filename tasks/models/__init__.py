"""Language models: their files, their frozen weights, decoding (docs/decisions/0077-transformers.md)."""
