"""A study opens in optuna-dashboard, from both storages; runs where that is installed."""

from __future__ import annotations

import json
from io import BytesIO

import pytest

pytest.importorskip("optuna_dashboard")
pytest.importorskip("psutil")

from advisor.trial.space import KNOBS
from advisor.trial.study import open_study, tune
from tests.trial.test_study import make_space, proportional, record, storages

pytestmark = pytest.mark.real


def get(app, path: str) -> dict:
    """What the dashboard answers."""
    said = []
    request = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "wsgi.input": BytesIO(), "SERVER_NAME": "x",
               "SERVER_PORT": "1", "wsgi.url_scheme": "http", "QUERY_STRING": ""}  # fmt: skip
    body = b"".join(app(request, lambda status, headers, *_: said.append(status)))
    assert said == ["200 OK"], body
    return json.loads(body)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_the_dashboard_shows_every_trial_and_knob(tmp_path, kind):
    space = make_space(tmp_path)
    url = storages(tmp_path)[kind]
    study = open_study("advisor", url, space.pool, 0)
    list(tune(study, space, 5, lambda one: record(one, None, "oom") if one is space.pool[1] else proportional(one)))
    import optuna_dashboard

    app = optuna_dashboard.wsgi(url if kind == "sqlite" else study._storage)
    (summary,) = get(app, "/api/studies")["study_summaries"]
    shown = get(app, f"/api/studies/{summary['study_id']}")
    states = [trial["state"] for trial in shown["trials"]]
    assert states.count("Complete") == 4
    assert states.count("Fail") == 1
    assert {one["name"] for one in shown["trials"][0]["params"]} == {"candidate", *KNOBS}
