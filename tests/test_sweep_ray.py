"""Runs on a Ray cluster of two nodes, one of which is lost: the bits of this machine, nothing lost, nothing twice."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from momentex import cli
from momentex.errors import RunError
from momentex.sweep import node, ray_cluster
from momentex.sweep.job import Finished, Job, failure_of, is_complete
from momentex.sweep.local import run_local
from momentex.sweep.node import Terms
from momentex.sweep.ray_cluster import run_ray
from momentex.sweep.watch import Silent
from momentex.train.record import Record, locked
from tests.test_sweep_local import Seen, troubled
from tests.test_sweep_verb import MINE
from tests.train_runs import STARTING, assert_same_run, metrics, tiny, trained

LONG = 50  # epochs of a run that is under way for some seconds
QUICK = {  # ms, and how often: until a node counts as lost
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_cluster, "LOOK", 0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that takes no runs, and two nodes that take one each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    patch, folder = pytest.MonkeyPatch(), tempfile.mkdtemp(prefix="ray-")  # paths of sockets must be short
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_TMPDIR", folder)  # not everybody's, where the address of a cluster of one's own is noted
    (Path(folder) / "ray").mkdir()
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.first, made.second = (made.add_node(num_cpus=1) for _ in range(2))
    yield made
    made.shutdown()
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


# --- nodes that cannot be used ---------------------------------------------------------------------------------------


PACKAGES = {  # what a node has, and what is said of it
    "__version__ = '0.0.1'": r"has momentex 0\.0\.1, here is .*: runs of one sweep need the same versions\.",
    "raise ModuleNotFoundError('No module named momentex')": r"lacks a package: No module .*\[train,cluster\] there",
}


def test_a_node_without_the_package_or_with_another_version_is_named_before_anything_is_trained(
    cluster: Any, tmp_path: Path
) -> None:
    bad = []
    for number, package in enumerate(PACKAGES):
        (tmp_path / f"{number}" / "momentex").mkdir(parents=True)
        (tmp_path / f"{number}" / "momentex" / "__init__.py").write_text(package)
        bad.append(cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / f"{number}")}))
    try:
        with pytest.raises(RunError, match=r"nodes that cannot be used:\n(.|\n)*Nothing was trained") as caught:
            run_ray([Job(tiny(), tmp_path / "runs" / "one", "one")], address=cluster.address, watch=Silent())
    finally:
        for node_of_it in bad:
            cluster.remove_node(node_of_it)
    for says in PACKAGES.values():
        assert re.search(rf"\n  .+ \(.+\) {says}", str(caught.value))
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_no_node_has_is_refused_with_what_there_is(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"a run needs 2 CPUs, and no node of the cluster has that: there are nodes with 1"
    ):
        run_ray([Job(tiny(), tmp_path / "one", "one")], address=cluster.address, threads=2, watch=Silent())


def test_a_folder_in_which_another_sweep_trains_is_refused(cluster: Any, tmp_path: Path) -> None:
    with (
        locked(tmp_path / ray_cluster.SHARED),
        pytest.raises(RunError, match=r"a sweep trains in .* already \(process"),
    ):
        run_ray([Job(tiny(), tmp_path / "one", "one")], address=cluster.address, watch=Silent())


# --- a node is lost --------------------------------------------------------------------------------------------------


class Ray(Seen):
    """Ends a node when all runs of `both` are on their way."""

    def __init__(self, cluster: Any, both: list[Job]) -> None:
        super().__init__()
        self.cluster, self.both = cluster, both
        self.rows: dict[str, int] | None = None

    def running(self, job: Job, epochs: float) -> None:
        super().running(job, epochs)
        rows = {run.label: len(Record(run.to).metrics()) for run in self.both}
        if self.rows is None and all(0 < number < LONG - 10 for number in rows.values()):
            self.rows = rows
            self.cluster.remove_node(self.cluster.second, allow_graceful=False)


@pytest.fixture(scope="module")
def swept(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Job], list[Finished], Ray]:
    """The first two runs are under way on a node each when one of the nodes is ended."""
    folder = tmp_path_factory.mktemp("swept")
    recipes = {
        "seed 0": tiny(epochs=LONG),
        "seed 1": tiny(seed=1, epochs=LONG),
        "fails": troubled("fails"),
        "dies once": troubled("dies once", folder / "died", epochs=3),
        "complete": tiny(seed=3),
    }
    jobs = [Job(recipe, folder / label.replace(" ", "-"), label) for label, recipe in recipes.items()]
    trained(jobs[-1].recipe, jobs[-1].to)
    watch = Ray(cluster, jobs[:2])
    patch = pytest.MonkeyPatch()
    patch.setattr(ray_cluster, "LOOK", 0.2)
    ended = run_ray(jobs, address=cluster.address, threads=1, watch=watch, command="a sweep")
    patch.undo()
    return jobs, ended, watch


def test_nothing_is_lost_with_a_node(swept: tuple[list[Job], list[Finished], Ray]) -> None:
    jobs, ended, watch = swept
    assert watch.rows is not None, "the node was not ended while both runs were under way"
    assert any("was lost: its runs go on at other nodes" in text for text in watch.said)
    assert [finished.job for finished in ended] == jobs
    assert {finished.job.label for finished in ended if finished.failure} == {"fails"}
    assert {job.label for job in jobs if not is_complete(job)} == {"fails"}
    assert watch.started == ([job.label for job in jobs[:-1]], 1, 2)
    assert sorted(finished.job.label for finished in watch.over) == sorted(job.label for job in jobs[:-1])
    assert watch.closed == 1


def test_nothing_is_trained_twice_and_the_lost_run_goes_on_from_its_checkpoint(
    swept: tuple[list[Job], list[Finished], Ray],
) -> None:
    jobs, _, watch = swept
    assert watch.rows is not None
    starts = {job.label: len(Record(job.to).starts()) for job in jobs}
    (lost,) = (job for job in jobs[:2] if starts[job.label] == 2)
    assert starts == {"seed 0": 1, "seed 1": 1, "fails": 1, "dies once": 2, "complete": 1, lost.label: 2}
    (line,) = (text for text in (lost.to / "output.txt").read_text().splitlines() if text.startswith("going on after"))
    assert int(line.split()[4].rstrip(",")) >= watch.rows[lost.label]
    for job in jobs:
        epochs = [row["epoch"] for row in metrics(job.to)] if starts[job.label] and job.label != "fails" else []
        assert epochs == list(range(1, len(epochs) + 1))


def test_the_result_is_that_of_this_machine_bit_for_bit(
    swept: tuple[list[Job], list[Finished], Ray], tmp_path: Path
) -> None:
    jobs, _, _ = swept
    here = [Job(job.recipe, tmp_path / job.to.name, job.label) for job in jobs if job.label != "fails"]
    run_local(here, workers=2, threads=1, watch=Silent())
    for job in here:
        assert_same_run(job.to, next(other.to for other in jobs if other.label == job.label))


def test_a_failure_is_kept_apart_with_its_reason_as_on_this_machine(
    swept: tuple[list[Job], list[Finished], Ray],
) -> None:
    jobs, ended, watch = swept
    failure = ended[2].failure
    assert failure is not None
    assert failure.startswith("ZeroDivisionError: a fault of the model (")
    assert failure_of(jobs[2]) == failure
    assert "Traceback (most recent call last)" in (jobs[2].to / "output.txt").read_text()
    assert any(text.startswith("dies once: the process ended with signal 9") for text in watch.said)


def test_nothing_but_the_runs_is_left_behind(swept: tuple[list[Job], list[Finished], Ray]) -> None:
    jobs, _, _ = swept
    assert {path.name for path in jobs[0].to.parent.iterdir()} == {job.to.name for job in jobs} | {"died"}


# --- interruption ----------------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_checkpoints_and_the_same_call_goes_on_to_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    jobs = [Job(tiny(seed=seed, epochs=LONG), tmp_path / f"seed-{seed}", f"seed {seed}") for seed in (0, 1)]

    def at() -> None:
        if Record(jobs[0].to).metrics():
            signal.raise_signal(signal.SIGINT)

    seen, before = Seen(at), {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt):
        run_ray(jobs, address=cluster.address, workers=1, watch=seen)
    assert seen.closed == 1
    assert {number: signal.getsignal(number) for number in before} == before
    assert not any(map(is_complete, jobs))
    with locked(jobs[0].to) as record:  # nobody is left in it
        assert record.metrics()
    assert not (jobs[0].to / "error.txt").exists()
    assert not jobs[1].to.exists()
    (ended,) = run_ray(jobs[:1], address=cluster.address, watch=Silent())
    assert ended.failure is None
    assert_same_run(trained(jobs[0].recipe, tmp_path / "alone"), jobs[0].to)


# --- several processes -----------------------------------------------------------------------------------------------


def test_a_run_of_two_processes_needs_a_node_with_room_for_both(cluster: Any, tmp_path: Path) -> None:
    job = Job(tiny(), tmp_path / "one", "one")
    with pytest.raises(RunError, match=r"a run needs 2 CPUs, and no node"):
        run_ray([job], address=cluster.address, processes=2, watch=Silent())
    larger = cluster.add_node(num_cpus=2)
    try:
        (ended,) = run_ray([job], address=cluster.address, processes=2, watch=Silent())
    finally:
        cluster.remove_node(larger)
    assert ended.failure is None
    assert [start["processes"] for start in Record(job.to).starts()] == [2]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_makes_one_table_there_and_here(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    told = {}
    for on in ("ray", "local"):
        command = ("sweep", "mine.py:two", "--seeds", "1", "--threads", "1", "--json", "--on", on, "--to", f"runs/{on}")
        assert cli.main(command) == 0
        told[on] = json.loads(capsys.readouterr().out)  # and nothing of Ray's
    assert told["ray"]["table"] == told["local"]["table"]
    assert told["ray"]["table"]


# --- addresses -------------------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_that_does_not_answer_is_an_error_at_once(tmp_path: Path, form: str) -> None:
    pytest.importorskip("ray")
    address, began = form.format(closed_port()), time.monotonic()
    with pytest.raises(
        RunError, match=rf"no Ray cluster answers at {address} \(.+\)\. Is its head running .*trained\."
    ):
        run_ray([Job(tiny(), tmp_path / "one", "one")], address=address, watch=Silent())
    assert time.monotonic() - began < STARTING / 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["alpha", "alpha:port", ":6379", "ray://alpha", "alpha:99999"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(
        RunError, match=r"is no address of a Ray cluster: it is written as HOST:6379, as ray://HOST:10001"
    ):
        run_ray([Job(tiny(), tmp_path / "one", "one")], address=address, watch=Silent())


def test_without_ray_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"ray, which is not installed\. Do: pip install 'momentex\[cluster\]'"):
        run_ray([Job(tiny(), tmp_path / "one", "one")], watch=Silent())


def test_runs_that_are_complete_need_no_cluster(tmp_path: Path) -> None:
    job = Job(tiny(), trained(tiny(), tmp_path / "one"), "one")
    assert run_ray([job], address=f"127.0.0.1:{closed_port()}", watch=Silent()) == [Finished(job, None, 0.0)]


# --- a node by itself ------------------------------------------------------------------------------------------------


def terms(folder: Path, **changes: Any) -> Terms:
    values = {"at": str(folder), "shared": str(folder / "shared"), "threads": 1, "processes": 1, "command": ""}
    return Terms(**(values | changes))


def test_a_node_is_fit_if_it_sees_the_folders_and_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "shared"):
        assert node.unfit(terms(tmp_path)) is None
    assert "locks of this file system do not reach other nodes" in (node.unfit(terms(tmp_path)) or "")
    gone = tmp_path / "gone"
    assert node.unfit(terms(tmp_path, at=str(gone))) == (
        f"does not see {gone}, where the sweep was started: all nodes need one file system"
    )
    assert f"does not see {gone}, where its runs go" in (node.unfit(terms(tmp_path, shared=str(gone))) or "")


def test_a_run_waits_for_whoever_trains_there_still(tmp_path: Path) -> None:
    began = time.monotonic()
    with locked(tmp_path):
        node.wait_until_free(tmp_path, patience=0.3)
    assert time.monotonic() - began >= 0.3
    node.wait_until_free(tmp_path)


def test_what_a_run_needs_of_a_node(tmp_path: Path) -> None:
    def has(cpus: int, gpus: int = 0, alive: bool = True) -> dict[str, Any]:
        return {"Alive": alive, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}}

    need = ray_cluster._need
    assert need([has(0), has(8), has(4, alive=False)], None) == (ray_cluster.Need(1, 0), 8)
    assert need([has(8), has(7)], 2) == (ray_cluster.Need(2, 0), 7)
    assert need([has(0), has(32, 4), has(64)], None) == (ray_cluster.Need(8, 1), 4)
    assert need([has(16, 4), has(64, 1)], 2, 2) == (ray_cluster.Need(4, 2), 2)
    with pytest.raises(RunError, match=r"needs 3 CPUs, and .* nodes with 2 CPUs and 0 GPUs, 0 CPUs and 0 GPUs\. Take"):
        need([has(0), has(2), has(2)], 3)
