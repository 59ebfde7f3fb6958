"""Fair and accurate personalized federated learning with self-supervised learning."""

__version__ = "0.1.0"
