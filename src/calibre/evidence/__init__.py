"""The runs that published numbers rest on, kept in the repository: docs/evidence.md says how."""
