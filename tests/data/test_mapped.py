"""Arrays that stay in their files."""

import mmap

import numpy as np
import pytest
import safetensors.numpy

from calibre.data.mapped import mapped_npy, mapped_safetensors


def owner_of(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def test_safetensors_are_mapped_as_they_were_saved(tmp_path):
    arrays = {
        "odd": np.arange(5, dtype=np.int32),
        "offsets": np.arange(3, dtype=np.int64) - 1,
        "table": np.arange(6, dtype=np.int64).reshape(2, 3),
        "none": np.zeros(0, np.int32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "a", metadata={"of": "a test"})
    found = mapped_safetensors(tmp_path / "a")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.aligned
        assert isinstance(owner_of(found[name]), mmap.mmap)


def test_an_npy_is_mapped_and_cannot_be_changed(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4))
    array = mapped_npy(tmp_path / "a.npy")
    assert type(array) is np.ndarray
    assert isinstance(owner_of(array), mmap.mmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
