"""The same methods across real machines, on Flower."""
