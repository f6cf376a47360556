"""`tilesight db optuna`: sessions as studies of Optuna, read again by Optuna and by its dashboard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.trial import TrialState

from tests.support.page_sessions import HOSTILE, record, recorded_session
from tests.unit.cli.test_commands import Shell
from tilesight.database import open_store
from tilesight.database.exchange.optuna_study import write_study
from tilesight.errors import InputError
from tilesight.problem.config import Config
from tilesight.records.recorded_session import RecordedSession
from tilesight.records.session import Effort
from tilesight.records.trial import Status

SESSION = recorded_session(20, 6)
Read = Callable[[Path], optuna.Study]


def storage_of(path: Path) -> Any:
    if path.suffix == ".log":
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return optuna.storages.RDBStorage(f"sqlite:///{path}")


def study_of(path: Path) -> optuna.Study:
    """The only study in a file."""
    storage = storage_of(path)
    [name] = optuna.study.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def with_trials(found: RecordedSession, *trials: Any) -> RecordedSession:
    return replace(found, result=replace(found.result, trials=trials))


@pytest.fixture(scope="module", params=["study.db", "study.log"])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> optuna.Study:
    """The study of a session, written as each kind of file."""
    path = tmp_path_factory.mktemp("study") / request.param
    assert write_study(SESSION, path) == 20
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no lock and no partial file stays
    return study_of(path)


def test_every_candidate_is_a_trial_of_its_state(study: optuna.Study) -> None:
    counted = Counter(trial.state for trial in study.trials)
    by_status = Counter(trial.status for trial in SESSION.result.trials)
    assert counted == {
        TrialState.COMPLETE: by_status[Status.VERIFIED],
        TrialState.PRUNED: by_status[Status.PREDICTED],
        TrialState.FAIL: by_status[Status.FAILED],
    }
    assert min(counted.values()) > 0
    configs = {Config(trial.params) for trial in study.trials}
    assert configs == {trial.config for trial in SESSION.result.trials}


def test_values_are_measured_times_and_the_best_is_the_fastest(study: optuna.Study) -> None:
    assert study.metric_names == ["measured time, us"]
    measured = {t.config: t.measured_us for t in SESSION.result.trials if t.measured_us is not None}
    values = {Config(t.params): t.value for t in study.trials if t.state is TrialState.COMPLETE}
    assert values == measured
    assert study.best_value == min(measured.values())
    assert not any(t.value for t in study.trials if t.state is not TrialState.COMPLETE)


def test_attributes_have_prediction_sigma_and_failure(study: optuna.Study) -> None:
    known = {trial.config: trial for trial in SESSION.result.trials}
    for trial in study.trials:
        record, attributes = known[Config(trial.params)], trial.user_attrs
        assert attributes["status"] == record.status.value
        assert attributes.get("predicted_us") == record.predicted_us
        if record.prediction:
            assert attributes["sigma"] == record.prediction.uncertainty
            assert attributes["limiting (predicted)"] == record.prediction.limiting
        if record.failure:
            assert attributes["failure_kind"] == record.failure.kind.value
            assert attributes["failure_message"] == record.failure.message
    assert study.user_attrs["workload"] == SESSION.summary.context.workload.key
    assert study.user_attrs["other implementations, us"] == {"cuBLAS ": 208.45}


def test_trials_have_the_order_and_the_times_in_which_they_ended(study: optuna.Study) -> None:
    ends = [trial.datetime_complete for trial in study.trials]
    assert None not in ends
    assert ends == sorted(ends, key=str)
    assert all(
        trial.datetime_start is not None
        and trial.datetime_complete is not None
        and trial.datetime_start <= trial.datetime_complete
        for trial in study.trials
    )


def test_distributions_keep_numbers_in_order(study: optuna.Study) -> None:
    [*_, trial] = study.trials
    distributions = trial.distributions
    assert isinstance(distributions["block_m"], optuna.distributions.IntDistribution)
    assert (distributions["block_m"].low, distributions["block_m"].high) == (64, 256)
    assert isinstance(distributions["block_order"], optuna.distributions.CategoricalDistribution)
    assert set(distributions["persistent"].choices) == {False, True}  # type: ignore[attr-defined]


def test_predictions_are_never_values_of_measured_ones(tmp_path: Path) -> None:
    found = recorded_session(20, 0)
    write_study(found, tmp_path / "study.log")
    study = study_of(tmp_path / "study.log")
    assert study.metric_names == ["predicted time, us"]
    assert study.user_attrs["values"] == "predicted time, us"
    assert study.best_value == min(t.predicted_us for t in found.result.trials if t.predicted_us)
    noisy = [
        replace(t, status=Status.NOISY) if t.status is Status.VERIFIED else t for t in SESSION.result.trials
    ]
    write_study(with_trials(SESSION, *noisy), tmp_path / "noisy.log")
    assert study_of(tmp_path / "noisy.log").metric_names == ["noisy time, us"]


def test_parameters_that_some_configs_lack_and_values_of_several_types(tmp_path: Path) -> None:
    first, second, *_ = (trial for trial in SESSION.result.trials if trial.status is Status.VERIFIED)
    trials = [
        replace(first, config=Config({"a": 1, "flag": True, "scale": 0.5})),
        replace(second, config=Config({"a": "x", "flag": 1, "scale": 2})),
        replace(second, config=Config({"a": 3})),
    ]
    write_study(with_trials(SESSION, *trials), tmp_path / "study.log")
    found = [trial.params for trial in study_of(tmp_path / "study.log").trials]
    assert sorted(found, key=str) == sorted((dict(trial.config) for trial in trials), key=str)


def test_hostile_texts_are_kept_as_they_are(tmp_path: Path) -> None:
    for name in ("study.db", "study.log"):
        write_study(recorded_session(4, 2, HOSTILE), tmp_path / name)
        params = [trial.params for trial in study_of(tmp_path / name).trials]
        assert HOSTILE in {found.get("name") for found in params}


# ---- the command


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Shell]:
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


@pytest.fixture
def session_id(tmp_path: Path) -> int:
    return record(recorded_session(6, 3), f"sqlite:///{tmp_path}/performance.db")


def test_the_command_writes_a_file(shell: Shell, session_id: int) -> None:
    code, out, _ = shell("db", "optuna", str(session_id))
    assert (code, out) == (0, "6 trials written to study.log; `optuna-dashboard study.log` shows them\n")
    assert len(study_of(Path("study.log")).trials) == 6
    answer = json.loads(shell("db", "optuna", str(session_id), "--out", "other.db", "--json")[1])
    assert (answer["kind"], answer["session"], answer["out"], answer["trials"]) == (
        "db_optuna", session_id, "other.db", 6,
    )  # fmt: skip
    for name in ("study.log", "other.db"):  # a study of ours is replaced
        assert shell("db", "optuna", str(session_id), "--out", name)[0] == 0
        assert len(study_of(Path(name)).trials) == 6


def test_other_files_are_left_alone(shell: Shell, session_id: int) -> None:
    Path("notes.log").write_text("mine", encoding="utf-8")
    optuna.create_study(storage="sqlite:///foreign.db", study_name="mine")
    for name in ("notes.log", "foreign.db", "performance.db"):
        before = Path(name).read_bytes()
        code, out, err = shell("db", "optuna", str(session_id), "--out", name)
        assert (code, out) == (2, ""), name
        assert (
            err
            == f"error: --out {name} is there and no study of TileSight; name another file, or remove it\n"
        )
        assert Path(name).read_bytes() == before


def test_what_cannot_be_written_is_one_line(shell: Shell, session_id: int) -> None:
    for arguments, words in (
        (("7",), "session 7 is not in this database"),
        ((str(session_id), "--out", "x.txt"), "--out x.txt must end in .db (SQLite) or .log"),
        ((str(session_id), "--out", "none/x.db"), "there is no folder 'none'"),
    ):
        code, out, err = shell("db", "optuna", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    assert sorted(path.suffix for path in Path().iterdir() if "performance" not in path.name) == []


def test_an_empty_session_is_refused_and_a_running_one_written(shell: Shell, tmp_path: Path) -> None:
    found = recorded_session(12, 4)
    with open_store(f"sqlite:///{tmp_path}/performance.db") as store:
        made = store.begin(found.summary.context, Effort.QUICK, 0, {}, found.result.census)
        assert shell("db", "optuna", str(made))[2] == (
            f"error: session {made} has no candidates: there is nothing to write\n"
        )
        store.record_many(made, found.summary.context, found.result.trials[:5])
        assert shell("db", "optuna", str(made))[0] == 0
    assert study_of(Path("study.log")).user_attrs["state"] == "running"


def test_a_failed_write_leaves_the_study_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.log"
    write_study(SESSION, path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(optuna.Study, "add_trials", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write_study(recorded_session(12, 4), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ---- in optuna-dashboard


def asked(application: Any, path: str) -> tuple[str, bytes]:
    """Status and body of the answer of a WSGI application."""
    environment: dict[str, Any] = {}
    setup_testing_defaults(environment)
    path, _, query = path.partition("?")
    environment |= {"PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": BytesIO()}
    status: list[str] = []
    body = b"".join(application(environment, lambda line, _headers, *_: status.append(line)))
    return status[0], body


@pytest.mark.parametrize("name", ["study.db", "study.log"])
def test_the_dashboard_shows_it(tmp_path: Path, name: str) -> None:
    import optuna_dashboard

    found = recorded_session(8, 3)
    write_study(found, tmp_path / name)
    application = optuna_dashboard.wsgi(storage_of(tmp_path / name))
    status, body = asked(application, "/api/studies")
    assert status.startswith("200")
    [listed] = json.loads(body)["study_summaries"]
    assert listed["study_name"] == "TileSight session 7: matmul M4: m=4096 n=4096 k=4096 float16 on h200"
    status, body = asked(application, f"/api/studies/{listed['study_id']}?after=0")
    assert status.startswith("200")
    shown = json.loads(body)
    assert Counter(trial["state"] for trial in shown["trials"]) == {"Complete": 4, "Pruned": 3, "Fail": 1}
    assert shown["objective_names"] == ["measured time, us"]
    measured = [trial.measured_us for trial in found.result.trials if trial.measured_us]
    assert shown["best_trials"][0]["values"] == [min(measured)]
    assert {"predicted_us", "sigma", "failure_kind"} <= {each["key"] for each in shown["union_user_attrs"]}
    assert asked(application, "/dashboard")[0].startswith("200")
