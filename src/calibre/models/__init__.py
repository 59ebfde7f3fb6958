"""Encoders and the networks made of them."""
