"""What Calibre adds to an SSL method: clusters, two regularisers and a divergence rate."""
