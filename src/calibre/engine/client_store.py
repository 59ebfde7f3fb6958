"""What each client keeps between rounds, and its personal model at the end."""

from collections.abc import Callable, Mapping
from pathlib import Path

from calibre.files import lacking, write_atomic
from calibre.tensors import Tensors, read_file, to_file

PERSONAL = "personal.safetensors"  # its file among those of rounds


class ClientStore:
    """By client, and by the round that something was kept after.

    A client writes before it replies; what it wrote counts only once the round is committed. So
    versions are never overwritten, and a client reads the newest one that the server's state,
    perhaps an earlier one after a resume, already knows. Every file carries a checksum: reading a
    damaged one is a ``ValueError``.
    """

    def __init__(self, path: Path, training: str = "") -> None:
        """``training`` is the hash of what trains here: what another run kept is not taken."""
        self.path = path
        self.training = training

    def save(self, client: int, after_round: int, tensors: Tensors, oldest_needed: int) -> None:
        folder = self._folder(client)
        folder.mkdir(parents=True, exist_ok=True)
        content = to_file(tensors, self._of(client, after_round))
        write_atomic(self._file(client, after_round), content)
        for version in self._versions(client, up_to=oldest_needed)[1:]:
            self._file(client, version).unlink()

    def load(self, client: int, server_round: int) -> Tensors | None:
        versions = self._versions(client, up_to=server_round)
        return self._read(client, versions[0], f"client {client}") if versions else None

    def problem(
        self, kept: Mapping[int, int], name_of: Callable[[int], str] = "client {}".format
    ) -> str | None:
        """What is wrong with what clients kept, where ``kept`` says after which round; or None."""
        for client, round_ in sorted(kept.items()):
            try:
                self._read(client, round_, name_of(client))
            except ValueError as problem:
                return str(problem)
        return None

    def discard(self, client: int, after_round: int) -> None:
        """Forget what a client kept in a round that refused its update."""
        self._file(client, after_round).unlink(missing_ok=True)

    def drop_after(self, round_: int) -> None:
        """Forget what all clients kept after later rounds, and their personal models."""
        for file in self.path.glob("[0-9]*/*.safetensors"):
            if (_version(file) or round_ + 1) > round_:
                file.unlink()

    def save_personal(self, client: int, tensors: Tensors) -> None:
        folder = self._folder(client)
        folder.mkdir(parents=True, exist_ok=True)
        # derived from the model and rebuilt by any resume, so not forced to disk one by one
        temporary = folder / ".personal.tmp"
        try:
            temporary.write_bytes(to_file(tensors, f"client {client}"))
            temporary.replace(self.personal_file(client))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def load_personal(self, client: int) -> Tensors | None:
        """What of a client's personal model is its own; None before there is one."""
        path = self.personal_file(client)
        return read_file(path, f"client {client}") if path.exists() else None

    def personal_file(self, client: int) -> Path:
        return self._folder(client) / PERSONAL

    def _read(self, client: int, version: int, name: str) -> Tensors:
        try:
            return read_file(self._file(client, version), self._of(client, version))
        except FileNotFoundError:
            cause = "is missing"
        except (OSError, ValueError) as error:
            if lacking(error):
                raise
            cause = f"is damaged ({error})"
        raise ValueError(f"what {name} kept after round {version} {cause}")

    def _of(self, client: int, version: int) -> str:
        """What a file is of; its checksum covers that too, so that none stands for another."""
        return f"{self.training} client {client} round {version}" if self.training else ""

    def _folder(self, client: int) -> Path:
        return self.path / f"{client:06d}"

    def _file(self, client: int, version: int) -> Path:
        return self._folder(client) / f"{version:04d}.safetensors"

    def _versions(self, client: int, up_to: int) -> list[int]:
        """Rounds in which the client kept something, newest first."""
        files = self._folder(client).glob("[0-9]*.safetensors")
        versions = (version for file in files if (version := _version(file)) is not None)
        return sorted((version for version in versions if version <= up_to), reverse=True)


def _version(file: Path) -> int | None:
    """The round that a file was kept after; None of a personal model, or of somebody's copy."""
    return int(file.stem) if file.stem.isascii() and file.stem.isdigit() else None
