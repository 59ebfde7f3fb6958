"""Handwritten digits as the folders of several owners: together, and each at its own site."""

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = 4


def write_folders(place, owners, train=24, test=12):
    """``place/all/{train,test}/OWNER/CLASS`` for an embedded run, the same at ``place/OWNER``."""
    digits = load_digits()
    random = np.random.default_rng(0)
    rows = np.flatnonzero(digits.target < CLASSES)
    rows = random.permutation(rows)
    for i, owner in enumerate(owners):
        own = rows[i * (train + test) : (i + 1) * (train + test)]
        for part, chosen in (("train", own[:train]), ("test", own[train:])):
            for row in chosen:
                picture = Image.fromarray((digits.images[row] * 15).astype(np.uint8))
                label = str(digits.target[row])
                for folder in (
                    place / "all" / part / owner / label,
                    place / owner / "images" / part / label,
                ):
                    folder.mkdir(parents=True, exist_ok=True)
                    picture.save(folder / f"{row}.png")


def write_site(place, owner, port=None, novel=False, keys=None, host="localhost"):
    """The site's file."""
    text = f'name = "{owner}"\nnovel = {str(novel).lower()}\n[data]\nsource = "images"\n'
    if port:
        text += (
            f'[connection]\nsuperlink = "{host}:{port}"\n'
            f'root_certificates = "{keys}/ca.crt"\nprivate_key = "{keys}/sites/{owner}"\n'
        )
    file = place / owner / "site.toml"
    file.write_text(text)
    return file
