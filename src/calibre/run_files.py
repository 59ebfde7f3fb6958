"""The names of all files in a run folder. They stand here and nowhere else.

    experiment.toml  federation.json  federation.safetensors  preprocessing.json  events.jsonl
    purposes.safetensors                which images are to train on, by hashes of their pixels
    checkpoints/round-0042.safetensors  and .json, written last: it commits the checkpoint
    clients/000017/0042.safetensors     what client 17 kept after round 42, never sent anywhere
    clients/000017/personal.safetensors its personal model, at the end
    model.safetensors  clients.csv  metrics.json  figures/  report.html
    bundles/                            personal models to take away, unless put elsewhere
    before.csv                          of an updated run: clients.csv as it was before
    sent.json                           of private runs: which noised models have left the server
    source.json                         of runs for recipes: which code began and went on with it
    sites.json  flower.json  flower/    of runs through Flower: who takes part, how it ended, logs

Nothing is unpickled. Files are written whole or not at all, and what decides a bit of the result
carries a checksum.
"""

from pathlib import Path

from calibre.errors import UserError

MODEL = "model.safetensors"  # the name that bundles and timm give their tensors too
CARD = "card.json"  # of a bundle


class RunFiles:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.federation = path / "federation.json"
        self.federation_arrays = path / "federation.safetensors"
        self.purposes = path / "purposes.safetensors"
        self.preprocessing = path / "preprocessing.json"
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.model = path / MODEL
        self.table = path / "clients.csv"
        self.before = path / "before.csv"
        self.metrics = path / "metrics.json"
        self.figures = path / "figures"
        self.page = path / "report.html"
        self.bundles = path / "bundles"
        self.sent = path / "sent.json"
        self.source = path / "source.json"
        self.sites = path / "sites.json"
        self.outcome = path / "flower.json"
        self.flower = path / "flower"
        self.flower_experiment = self.flower / self.experiment.name  # what Flower's apps are given

    @property
    def begun(self) -> bool:
        return self.experiment.is_file()

    @property
    def finished(self) -> bool:
        return self.metrics.is_file()

    def check_begun(self) -> None:
        if self.begun:
            return
        name = self.experiment.name
        inside = next(iter(sorted(self.path.glob(f"*/{name}"))), None)
        hint = f"; the runs are inside it, such as {inside.parent}" if inside else ""
        what = f"it has no {name}" if self.path.is_dir() else "there is no such folder"
        raise UserError(f"{self.path} is not a run folder: {what}{hint}")
