"""Learning rates at CPU scale, by method or objective.

Chosen once by ``calibre-fl reproduce learning-rates --scale cpu``: the best mean accuracy of the
training clients on validation images that were held out of their training images, after 10 rounds.
No test image and no novel client had a say.
"""

RATES: dict[str, float] = {"simclr": 0.03, "swav": 0.01, "smog": 0.01}
