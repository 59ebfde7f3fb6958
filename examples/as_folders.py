"""Export a known data set as the folders of eight sites that have few labels, to try `run --data`.

    python examples/as_folders.py cifar10 sites
    calibre-fl run --data sites

A site has five of the classes in a mix of its own: about 60 labelled and 340 unlabelled images to
train on, and 200 to be tested with, or as many as you say. ``--rehearsal`` takes the latter from
the training images, too: settings that are chosen there have not seen the test images.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings

SITES, CLASSES = 8, 5


def export(
    source: str, out: Path, seed: int, rehearsal: bool, labels: int, unlabelled: int, test: int
) -> None:
    if out.exists():
        raise UserError(f"{out} is there already: give a folder that is not")
    pool = load(DataSettings(source=source))
    classes = range(len(pool.classes))
    rng = np.random.default_rng(seed)

    def by_class(part: range) -> list[list[int]]:
        rows = np.asarray(part)
        return [list(rng.permutation(rows[pool.labels[rows] == k])) for k in classes]

    train = by_class(pool.train)
    unseen = train if rehearsal else by_class(pool.test)
    chosen: list[tuple[int, Path]] = []
    for site in range(SITES):
        held = rng.choice(classes, CLASSES, replace=False)
        mix = rng.dirichlet(np.ones(CLASSES)) * 0.8 + 0.2 / CLASSES  # a little of each
        for split, stock, images, labelled in (
            ("train", train, labels, True),
            ("train", train, unlabelled, False),
            ("test", unseen, test, True),
        ):
            for k, share in zip(held, np.round(mix * images).astype(int), strict=True):
                count = max(share, 2) if labelled else share
                if count > len(stock[k]):
                    raise UserError(f"{source} has too few images of '{pool.classes[k]}' for this")
                name = pool.classes[k].replace("/", "-") if labelled else "unlabelled"
                folder = out / split / f"site-{site}" / name
                rows = [stock[k].pop() for _ in range(count)]
                chosen += [(row, folder / f"{split}-{row}.png") for row in rows]
    for row, file in chosen:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pool.images[row].squeeze()).save(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="cifar10, fashion-mnist, ...")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--unlabelled", type=int, default=340)
    parser.add_argument("--test", type=int, default=200)
    try:
        export(**vars(parser.parse_args()))
    except UserError as error:
        parser.error(str(error))
