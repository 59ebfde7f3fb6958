import pytest

from calibre.data.formats.known import KNOWN
from calibre.errors import UserError
from calibre.experiment import LATER, Experiment, method_named, read
from calibre.registry import METHODS, PRESETS
from calibre.settings import look_up
from calibre.tables import drop, flat


def test_toml_round_trip_keeps_everything(tmp_path):
    experiment = read(None, ["method.objective.temperature=0.1", "views.crop=[0.2, 1.0]"])
    file = tmp_path / "e.toml"
    file.write_text(experiment.to_toml())
    assert read(file) == experiment
    assert read(file).hash() == experiment.hash()


def test_hash_ignores_where_it_runs_but_not_what_it_computes():
    base = Experiment().hash()
    assert read(None, ["engine.workers=7", "name=x", "data.root=elsewhere"]).hash() == base
    assert read(None, ["seed=1"]).hash() != base
    assert read(None, ["method.prototypes.alpha_p=0.2"]).hash() != base


def test_hash_of_a_run_is_that_of_before_there_was_a_setting_unless_it_is_used():
    experiment = Experiment()
    values = experiment.model_dump(mode="json")
    for key, value in LATER.items():
        held = values if key != "method.model" else read(None, ["method.name=local"]).model_dump()
        assert flat(held)[key] == value  # its default
    other = read(None, ["method.sgd.warmup=1"])
    assert other.hash() != experiment.hash()
    drop(values, "method.sgd.warmup", 1)
    assert flat(values)["method.sgd.warmup"] == 0  # it had another value
    for key, value in LATER.items():
        drop(values, key, value)
    assert not flat(values).keys() & LATER.keys()
    drop(values, "seed.no.such", 0)
    drop(values, "no.such.key", 0)


def test_hash_of_known_data_is_that_of_the_scheme_that_is_meant():
    """Runs from before owners were asked for keep their names, and none stands for two."""
    for source in KNOWN:
        default, dirichlet = (
            read(None, [f"data.source={source}", *more])
            for more in ([], ["federation.scheme=dirichlet"])
        )
        assert default.hash() == dirichlet.hash()
    own = read(None, ["data.source=folder"])
    others = [read(own, [f"federation.scheme={name}"]) for name in ("dirichlet", "natural")]
    assert len({own.hash(), *(other.hash() for other in others)}) == 3


def test_names_and_tables_are_the_same_thing():
    for changes in (["method=fedavg"], ["method.name=fedavg"], ['method={name="fedavg"}']):
        assert read(None, changes).method.name == "fedavg"
    changed = read(None, ["method=pfl-ssl", "method.objective=simclr", "method.sgd.lr=0.5"])
    assert changed.method.name == "pfl-ssl"
    assert changed.method.objective.name == "simclr"
    assert changed.method.sgd.lr == 0.5


def test_another_method_does_not_inherit_what_was_set_for_the_first(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(
        "[method]\nname = 'calibre'\nobjective = {name = 'simclr', temperature = 0.1}\n"
        "prototypes = {clusters = 5}\nsgd = {batch = 16}\n"
    )
    other = read(file, ["method.name=fedavg"]).method
    assert (other.name, other.sgd) == ("fedavg", read(None, ["method=fedavg"]).method.sgd)
    for changes in (
        ["method.sgd.batch=8", "method.name=pfl-ssl"],  # whichever is typed first
        ["method.name=pfl-ssl", "method.sgd.batch=8"],
    ):
        assert read(file, changes).method.sgd.batch == 8
    same = read(file, ["method.name=calibre"]).method
    assert (same.prototypes.clusters, same.sgd.batch) == (5, 16)
    byol = read(file, ["method.objective.name=byol"]).method
    assert (byol.objective.name, byol.prototypes.clusters) == ("byol", 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("federation.clinets=3", "unknown key 'federation.clinets': did you mean 'clients'"),
        ("trainig.rounds=3", "unknown key 'trainig': did you mean 'training'"),
        ("training.rounds=-1", "training.rounds = -1: input should be greater than or equal to 0"),
        ("training.rounds=many", "training.rounds = 'many'"),
        ("federation.scheme=pathological", "'iid', 'quantity', 'dirichlet' or 'natural'"),
        ("method=fedavgg", "no method called 'fedavgg': did you mean 'fedavg'"),
        ("method.objective=simclrr", "did you mean 'simclr'"),
        ("method.objective.temprature=1", "'method.objective.temprature': did you mean 'temper"),
        ("method.sgd.lr=-1", "method.sgd.lr = -1"),
        ("method.sgd.lr=nan", "method.sgd.lr = nan"),
        ("method.prototypes.alfa_p=1", "'method.prototypes.alfa_p': did you mean 'alpha_p'"),
        ("method=nowhere:Thing", "'nowhere:Thing' cannot be loaded"),
        ("method=5", "method = 5: give a name"),
        ("method.name=5", "method.name = 5: give a name"),
        ("method=collections:OrderedDict", "must be a class of Method"),
        ("method.objective=collections:OrderedDict", "must be a class of ObjectiveSettings"),
        ("engine=3", "engine = 3"),
        ("method.objective=[1]", "method.objective = [1]: give a name"),
        ("rounds", "write section.key=value"),
        ("=3", "write section.key=value"),
    ],
)
def test_mistakes_are_named_with_what_would_work(change, message):
    with pytest.raises(UserError) as caught:
        read(None, [change])
    assert message in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none.toml"):
        read(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\n")
    with pytest.raises(UserError, match=r"broken.toml is not a TOML file"):
        read(broken)


def test_each_experiment_has_a_folder_of_its_own():
    names = {read(None, changes).folder_name for changes in ([], ["seed=1"], ["method=fedavg"])}
    assert len(names) == 3
    assert Experiment().folder_name.startswith("digits-calibre-simclr-")


def test_a_table_given_in_part_keeps_the_methods_own_defaults():
    default = read(None, ["method=fedavg"]).method.sgd
    changed = read(None, ["method=fedavg", "method.sgd.batch=16"]).method.sgd
    assert changed == default.model_copy(update={"batch": 16})
    assert changed.lr != read(None, []).method.sgd.lr


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_class_with_some_fields_set(tmp_path, name):
    preset, kind = method_named(name), look_up("method", name, METHODS)
    by_fields = kind(**PRESETS[name])
    assert type(preset) is kind
    assert preset == by_fields.model_copy(update={"name": name})
    assert (preset.label, preset.way) == (by_fields.label, by_fields.way)
    assert preset.label != kind().label
    spelt = read(None, [f"method.name={kind().name}", *[f"method.{k}=true" for k in PRESETS[name]]])
    assert spelt.method == by_fields
    assert read(None, method=by_fields).method == by_fields
    (tmp_path / "e.toml").write_text(read(None, [f"method={name}"]).to_toml())
    assert read(tmp_path / "e.toml").method == preset


def test_what_a_preset_sets_can_be_set_otherwise():
    for field in PRESETS["fedavg-ft"]:
        changed = read(None, ["method=fedavg-ft", f"method.{field}=false", "method.sgd.lr=0.5"])
        assert (changed.method.label, changed.method.way) == ("FedAvg", "received")
    other = read(read(None, ["method=fedavg-ft"]), ["method.name=fedprox"]).method
    assert (other.label, other.finetune) == ("FedProx", False)


def test_every_known_method_has_a_name_that_finds_it_again():
    for name in METHODS:
        method = method_named(name)
        assert method.name == name
        assert method_named(method.name) == method
        assert type(method)().name in METHODS


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "a/b", "a\\b", "..", ".hidden", "", "a\x00b", "a\nb", "x" * 101]
)
def test_a_name_never_leads_out_of_its_folder(name):
    with pytest.raises(UserError, match="it becomes the name of a folder"):
        read(name=name)


@pytest.mark.parametrize("name", ["study 3 (new)", "größe-2", "a.b", "mnist:v2", "x" * 100])
def test_a_name_of_words_is_fine(name):
    folder = read(name=name).folder_name
    assert folder.startswith(name.replace(":", "-"))
    assert "/" not in folder


def test_a_folder_named_after_its_images_is_one_name():
    for source in ("../..", "/data/a\x1b[31mb.npz", "/data/" + "x" * 300, "..\\..\\x"):
        folder = read(data={"source": source}).folder_name
        assert len(folder) < 120
        assert not {"/", "\\", "\x1b", "\x00"} & set(folder)
        assert folder not in (".", "..")


@pytest.mark.parametrize(
    "change",
    [
        "seed=" + "[" * 5000,
        "seed=" + "9" * 5000,
        "seed=0x" + "f" * 5000,
        "training.rounds=0x" + "f" * 5000,
        "method.objective=" + "{a=" * 3000 + "1" + "}" * 3000,
        "seed" + ".a" * 5000 + "=1",
        "seed=" + str(2**63),
    ],
    ids=["deep", "digits", "hex", "rounds", "tables", "keys", "64 bits"],
)
def test_values_beyond_all_measure_are_refused_in_few_words(change):
    with pytest.raises(UserError) as refused:
        read(None, [change])
    assert 10 < len(str(refused.value)) < 500


def test_seeds_of_any_size_from_python_are_told_too():
    with pytest.raises(UserError, match="seed"):
        read(seed=10**5000)


def test_weights_of_any_name_are_looked_for_in_words():
    for name in ("x" * 5000, "~nobody/x", "a\0b", "/dev/zero", "\ud800"):
        with pytest.raises(UserError, match="there is no such file or folder"):
            read(network={"weights": name})
