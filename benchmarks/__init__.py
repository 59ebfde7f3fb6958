"""Speed and memory, each as a ratio measured alternately in one run: ``make bench``."""
