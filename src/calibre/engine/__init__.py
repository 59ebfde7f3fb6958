"""Rounds, workers and the run folder: where it runs, and how it survives."""
