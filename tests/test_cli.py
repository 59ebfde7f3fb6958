import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from calibre import cli
from calibre.experiment import read
from tests.conftest import TINY

SETS = [part for change in (*TINY, "method.objective.hidden=8") for part in ("--set", change)]


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def command(*arguments: object, **options):
    return subprocess.run(
        [sys.executable, "-m", "calibre", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def test_run_ends_in_tables_pictures_and_metrics(tmp_path, pictures):
    floors = ["--set", 'personal.floors=["untrained", "local"]']
    result = invoke("run", *SETS, *floors, "--out", str(tmp_path / "r"))
    assert result.exit_code == 0, result.output
    for word in ("Calibre (SimCLR)", "untrained encoder", "local only", "5 clients that trained",
                 "2 clients never seen before"):  # fmt: skip
        assert word in result.output
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert {"method", "objective", "rounds", "seed", "federation", "train", "novel"} <= set(metrics)
    for group, clients in (("train", 5), ("novel", 2)):
        figures = metrics[group]
        assert figures["clients"] == clients
        assert {"mean", "variance", "std", "worst_tenth", "min", "max"} <= set(figures)
        assert figures["std"] ** 2 == pytest.approx(figures["variance"])
    rows = (tmp_path / "r" / "clients.csv").read_text().splitlines()
    assert len(rows) == 1 + 7
    for picture in ("accuracies.png", "accuracies.svg"):
        assert (tmp_path / "r" / "figures" / picture).stat().st_size > 1000


def test_json_is_all_that_programs_read(tmp_path):
    done = command("run", *SETS, "--out", tmp_path / "r", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["objective"] == "simclr"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--set", "federation.clinets=3"], "did you mean 'clients'"),
        (["run", "--set", "rounds=5"], "unknown key 'rounds': did you mean 'training.rounds'?"),
        (["run", "--set", "training.rounds=few"], "training.rounds = 'few'"),
        (["run", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", "--set", "data.source=cifr10"], "cifr10"),
        (["run", "--set", "federation.clients=5000"], "at most"),
        (["run", "--set", "data.source=[/x]"], "data.source"),
        (["run", "--set", "engine=3"], "engine = 3"),
        (["resume", "nowhere"], "not a run folder"),
        (["watch", "nowhere"], "not a run folder"),
        (["data", "download", "cifar11"], "did you mean 'cifar1"),
        (["run", "--set", "engine.device=cuda"], "no GPU"),
        (["run", "--set", "network.encoder=vgg"], "no network.encoder called 'vgg'"),
    ],
)
def test_a_users_mistake_is_a_message_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    here = ["--set", "engine.workers=0"] if arguments[0] == "run" else []
    here = [] if "engine=3" in arguments else here
    monkeypatch.setattr(sys, "argv", ["calibre-fl", *arguments, *here])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []
    assert message in " ".join(said.err.split())
    assert said.out == ""


def test_no_traceback_for_a_users_mistake(tmp_path):
    done = command("run", "--set", "federation.clinets=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'clients'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def hear_ctrl_c():
    """Whoever started the tests in the background has it ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_a_run_that_can_go_on(tmp_path):
    folder = tmp_path / "r"
    process = subprocess.Popen(
        [sys.executable, "-m", "calibre", "run", *SETS, "--set", "training.rounds=60",
         "--set", "engine.workers=1", "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "continue with  calibre-fl resume" in said
    assert "Traceback" not in said
    stopped_at = max(int(p.stem[6:]) for p in folder.glob("checkpoints/*.json"))
    done = command("resume", folder, "--set", "engine.workers=0", "--json")
    assert done.returncode == 0, done.stderr
    assert f"going on after round {stopped_at}" in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["rounds"] == 60


def test_help_is_quick():
    """The promise is 0.5 s on a quiet machine; a loaded one gets some slack. No torch."""
    slow = [m for m in ("torch", "numpy", "matplotlib", "sklearn") if _help_loads(m)]
    assert slow == []


def test_help_says_what_arguments_are():
    said = invoke("compare", "--help").output
    assert said.count("RUN...  Folders of finished runs.  [required]") == 1


def test_defaults_stand_in_plain_brackets():
    said = invoke("serve", "--help").output
    assert "[default: 8000;" in said
    assert "\\[" not in said


def _help_loads(module: str) -> bool:
    code = (
        "import sys\nfrom calibre import cli\nfrom typer.testing import CliRunner\n"
        "assert CliRunner().invoke(cli.app, ['--help']).exit_code == 0\n"
        f"sys.exit({module!r} in sys.modules)"
    )
    return bool(subprocess.run([sys.executable, "-c", code], check=False).returncode)


def test_methods_say_what_they_send():
    listed = json.loads(invoke("methods", "--json").output)
    sends = {row["label"]: row["sends"] for row in listed}
    assert sends["pFL-SimCLR"] == ["encoder", "projector"]
    assert sends["FedAvg"] == sends["FedAvg-FT"] == ["encoder", "head"]
    assert sends["SCAFFOLD"] == ["encoder", "head", "control"]
    assert sends["FedBN"] == ["encoder (in part)", "head"]
    assert sends["FedRep"] == ["encoder"]
    assert sends["LG-FedAvg"] == ["head"]
    assert sends["FedProto"] == ["prototypes"]
    assert sends["local only"] == []
    for name in ("SimCLR", "BYOL", "SimSiam", "MoCoV2", "SwAV", "SMoG"):  # no momentum copies
        assert "target" not in sends[f"Calibre ({name}) with labels"]
        shared = {*sends[f"pFL-{name}"], "head", "held"}  # the label term's
        assert set(sends[f"Calibre ({name}) with labels"]) == shared


def test_data_show_draws_the_federation(tmp_path):
    result = invoke("data", "show", *SETS, "--out", str(tmp_path / "who"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "who.png").exists()
    assert (tmp_path / "who.svg").exists()


def test_data_list_names_every_source():
    names = {row["name"] for row in json.loads(invoke("data", "list", "--json").output)}
    assert {"digits", "cifar10", "cifar100", "stl10", "mnist", "fashion-mnist"} <= names


def test_doctor_estimates_before_anything_starts():
    found = json.loads(invoke("doctor", *SETS, "--json").output)
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert {"in all", "memory", "sent per client and round"} <= set(found["experiment"])


def test_version():
    from calibre import __version__

    assert invoke("--version").output.strip() == __version__


def test_a_command_to_copy_has_its_path_in_quotes(tmp_path):
    place = tmp_path / "my run"
    place.mkdir()
    settings = read(None, [f"data.source={tmp_path / 'gone'}", "federation.scheme=natural"])
    (place / "experiment.toml").write_text(settings.to_toml())
    (message,) = [line for line in command("resume", place).stderr.splitlines() if "error" in line]
    words = shlex.split(message.partition("calibre-fl resume")[2])
    assert words[0] == str(place)


def test_resume_says_how_to_point_to_images_that_moved(tmp_path):
    gone = tmp_path / "gone"
    settings = read(None, [f"data.source={gone}", "federation.scheme=natural"])
    (tmp_path / "experiment.toml").write_text(settings.to_toml())
    done = command("resume", tmp_path)
    assert done.returncode == 2
    assert f"calibre-fl resume {tmp_path} --data NEWPLACE" in " ".join(done.stderr.split())
