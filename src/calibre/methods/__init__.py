"""Federated methods, one file each; ``calibre.registry`` names them."""
