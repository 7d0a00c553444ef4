"""Rules of the whole source tree: layers, circles, purity, sizes, citations, sentences (docs/testing.md)."""
