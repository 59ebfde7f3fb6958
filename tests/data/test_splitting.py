from math import ceil, floor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calibre.data.splitting import sample


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=80),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
)
def test_every_owner_and_class_gives_its_share(images, fraction, seed):
    owners = np.array([owner for owner, _ in images], dtype=np.int32)
    labels = np.array([label for _, label in images], dtype=np.int64)
    taken = sample(labels, owners, fraction, np.random.default_rng(seed))
    slack = 1e-9  # of n * fraction in floating point
    for owner in set(owners):
        groups = [owners == owner, *((owners == owner) & (labels == y) for y in set(labels))]
        for group in groups:
            share = group.sum() * fraction
            assert floor(share - slack) <= taken[group].sum() <= ceil(share + slack)
