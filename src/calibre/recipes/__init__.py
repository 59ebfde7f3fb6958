"""Every figure and table of the paper, each as a list of experiments and what to make of them."""
