"""Learning rates at CPU scale, by method or objective.

Chosen once through the paper's heads: the best mean accuracy of the training clients on validation
images that were held out of their training images, after 10 rounds. No test image and no novel
client had a say. ``calibre-fl reproduce learning-rates`` looks at them again through solved heads.
"""

RATES: dict[str, float] = {
    # objectives, plain and calibrated; FedEMA and FedU build on BYOL
    "simclr": 0.03, "byol": 0.01, "simsiam": 0.03, "moco": 0.01, "swav": 0.01, "smog": 0.01,
    "fedema": 0.01, "fedu": 0.01,
    # supervised, with momentum; a method and its fine-tuned form train alike
    "fedavg": 0.01, "fedavg-ft": 0.01, "fedprox": 0.01, "fedprox-ft": 0.01, "fedbn": 0.01,
    "fedbn-ft": 0.01, "qffl": 0.03, "qffl-ft": 0.03, "fedper": 0.03, "fedrep": 0.03,
    "fedbabu": 0.003, "lg-fedavg": 0.03, "ditto": 0.003, "apfl": 0.01, "fedproto": 0.003,
    # without
    "local": 0.03, "local-convergent": 0.03, "scaffold": 0.1, "scaffold-ft": 0.1,
    "perfedavg": 0.1, "perfedavg-hf": 0.1,
}  # fmt: skip
