import re
import subprocess
import sys

import pytest
import safetensors.torch as st
import torch

from calibre.errors import UserError
from calibre.models.tensorfile import located, sha256_of, shapes_of

TENSORS = {"a.weight": torch.ones(2, 3), "b": torch.zeros(())}


def test_shapes_are_read_without_tensors(tmp_path):
    st.save_file(TENSORS, tmp_path / "a.safetensors")
    assert shapes_of(tmp_path / "a.safetensors") == {"a.weight": (2, 3), "b": ()}


def test_the_hash_is_that_of_everybody(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")  # FIPS 180-2, B.1
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(tmp_path / "a") == known


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_is_refused_and_the_line_that_converts_it_works(tmp_path, new_format):
    file = tmp_path / "resnet.pth"
    torch.save(TENSORS, file, _use_new_zipfile_serialization=new_format)
    with pytest.raises(UserError, match=r"resnet.pth is pickled: .*can run code") as caught:
        shapes_of(file)
    line = re.search(r'python -c "(.*)"$', str(caught.value))[1]
    subprocess.run([sys.executable, "-c", line], cwd=tmp_path, check=True)
    assert shapes_of(tmp_path / "resnet.safetensors") == {"a.weight": (2, 3), "b": ()}


def test_what_is_no_safetensors_file_is_said(tmp_path):
    st.save_file(TENSORS, tmp_path / "a.safetensors")
    (tmp_path / "cut").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-1])
    (tmp_path / "text").write_text("hello, these are no tensors")
    (tmp_path / "empty").touch()
    for name in ("cut", "text", "empty"):
        with pytest.raises(UserError, match=rf"{name} is not a safetensors file, or damaged \("):
            shapes_of(tmp_path / name)


def test_a_folder_stands_for_its_model(tmp_path):
    with pytest.raises(UserError, match=r"the folder has no model.safetensors"):
        located(str(tmp_path))
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(UserError, match=r"is not finished; go on with  calibre-fl resume"):
        located(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert located(str(tmp_path)) == tmp_path / "model.safetensors"
    assert located(str(tmp_path / "model.safetensors")) == tmp_path / "model.safetensors"
    with pytest.raises(UserError, match=r"'nowhere.safetensors': there is no such file or folder"):
        located("nowhere.safetensors")
