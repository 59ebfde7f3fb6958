"""The same job in several frameworks, a file for each; ``python -m benchmarks.peers`` runs them.

But for ``calibre_fl``, these run in the peer's own environment, where there is no Calibre.
"""
