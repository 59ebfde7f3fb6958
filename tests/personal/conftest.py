import shutil

import pytest

from tests.personal.made_bundle import make_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """A bundle on disk, made once; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("made") / "clinic"
    make_bundle().save(folder)
    return folder


@pytest.fixture
def copy(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "copy")
