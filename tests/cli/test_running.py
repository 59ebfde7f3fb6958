"""Runs that go on by hand."""

import pytest
from typer.testing import CliRunner

from calibre import cli
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.evidence.noted import note, who_ran
from calibre.evidence.origin import Source


@pytest.mark.parametrize("noted", [True, False])
def test_a_run_for_the_ledger_goes_on_with_a_note_and_no_other_does(tiny, tmp_path, noted):
    place = tmp_path / "run"
    if noted:
        note(place, Source.here())
    rounds.run(tiny("training.rounds=1"), place)
    done = CliRunner().invoke(cli.app, ["resume", str(place), "--json"])
    assert done.exit_code == 0, done.output
    if noted:
        assert who_ran(place) == Source.here()
    else:
        with pytest.raises(UserError, match="does not say which code"):
            who_ran(place)
