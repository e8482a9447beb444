"""The papers' experiments, one module each; `benches/papers.py` runs them."""
