"""What a finished run is good for: bundles, models for newcomers, encodings to draw."""
