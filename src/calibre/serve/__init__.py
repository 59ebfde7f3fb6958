"""A bundle over HTTP: a page to drop images on, and an address for programs."""
