"""Figures and numbers that a person can trust."""
