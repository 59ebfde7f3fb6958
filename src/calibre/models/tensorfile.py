"""A safetensors file that somebody gives us: found, looked at and hashed, without loading it."""

import hashlib
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from calibre.errors import UserError
from calibre.run_files import MODEL, RunFiles
from calibre.wording import quoted

Shapes = dict[str, tuple[int, ...]]  # of tensors, by name

PICKLES = (b"PK\x03\x04", b"\x80")  # how files of torch.save begin, new and old


def located(name: str) -> Path:
    """The file of tensors that ``network.weights`` names, itself or by its folder."""
    path = Path(os.path.expanduser(name))
    folder = os.path.isdir(path)  # unlike Path's, it takes any name
    file = path / MODEL if folder else path
    if os.path.isfile(file):
        return file
    if not folder:
        raise UserError(f"network.weights = '{name[:200]}': there is no such file or folder")
    if RunFiles(path).begun:
        raise UserError(
            f"the run in {path} is not finished; go on with  calibre-fl resume {quoted(path)}"
        )
    raise UserError(f"network.weights = '{name}': the folder has no {MODEL}")


def shapes_of(file: Path) -> Shapes:
    """Names and shapes of a file's tensors, from its header alone."""
    try:
        with safe_open(file, framework="numpy") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise _unreadable(file, error) from None


def sha256_of(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _unreadable(file: Path, error: SafetensorError) -> UserError:
    with open(file, "rb") as content:
        pickled = content.read(4).startswith(PICKLES)
    if not pickled:
        return UserError(f"{file} is not a safetensors file, or damaged ({error})")
    better = file.with_suffix(".safetensors").name
    return UserError(
        f"{file} is pickled: opening it can run code that is hidden in it. If you trust where it "
        'comes from, convert it once:  python -c "import torch, safetensors.torch as st; '
        f"st.save_file(torch.load('{file.name}', weights_only=True), '{better}')\""
    )
