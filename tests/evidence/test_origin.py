import shutil

import pytest

from calibre.errors import UserError
from calibre.evidence import origin


@pytest.fixture
def package(tmp_path):
    for name in origin.DECIDING:
        place = origin.ROOT / name
        target = tmp_path / name
        if place.is_file():
            shutil.copyfile(place, target)
        else:
            target.mkdir()
            shutil.copyfile(place / "__init__.py", target / "__init__.py")
    return tmp_path


def test_words_for_people_are_no_code_that_matters(package):
    file = package / "rng.py"
    before, text = origin.code_hash(package), file.read_text()
    changed = text.replace('"""The only place where randomness is born.', '"""Other words.')
    file.write_text(changed.replace("\n\n\n", "\n\n\n# a remark\n\n"))
    assert file.read_text() != text
    assert origin.code_hash(package) == before


def test_code_that_decides_results_matters(package):
    before = origin.code_hash(package)
    file = package / "rng.py"
    file.write_text(file.read_text().replace("digest_size=8", "digest_size=9"))
    changed = origin.code_hash(package)
    assert changed != before
    (package / "ssl" / "new.py").write_text("x = 1\n")
    assert origin.code_hash(package) not in (before, changed)


def test_source_that_changes_under_a_command_stops_it(monkeypatch):
    source = origin.Source(code="one", commit="abc", machine="one core")
    monkeypatch.setattr(origin, "code_hash", lambda: "one")
    source.check_unchanged()
    monkeypatch.setattr(origin, "code_hash", lambda: "two")
    with pytest.raises(UserError, match="has changed since this command began"):
        source.check_unchanged()


def test_the_commit_of_this_repository_and_of_none(tmp_path):
    assert origin.commit(tmp_path) == "unknown"
    assert origin.commit().rstrip("+").isalnum()


def test_a_processor_of_any_name_is_told_in_plain_text(monkeypatch):
    monkeypatch.setattr(origin, "_processor", lambda: "<a|b>\nc" + "x" * 300)
    told = origin.Source.here().machine
    assert "of abcxxx" in told
    assert len(told) == 200
