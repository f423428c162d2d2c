"""Runs on a Ray cluster: a task for each run, which says what CPUs and GPUs it needs.

Ray decides where a run goes, and starts it again elsewhere when its node is lost; the run then goes on from its
checkpoint, in its directory on the file system that all nodes share. Whether a run is complete, and whose it is, is
decided there alone, by its record and its lock: Ray's word is not needed for that.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import momentex
from momentex.errors import RunError, RunInUse
from momentex.sweep.job import Finished, Job, check_apart, encoded, is_complete, note
from momentex.sweep.local import interrupted_by_all_signals
from momentex.sweep.node import Terms
from momentex.sweep.ray_connection import HERE, connected
from momentex.sweep.watch import Watch
from momentex.train.record import LOCK, Record, locked

LOST = 10  # times that a run may lose its node
LOOK = 2.0  # seconds between looks at the run directories
ANSWER = 120.0  # seconds that a node may take to say whether it is fit
SHARED = ".cluster"  # a folder among the runs


def run_ray(
    jobs: Sequence[Job],
    *,
    address: str = HERE,
    workers: int | None = None,
    threads: int | None = None,
    processes: int = 1,
    watch: Watch,
    command: str = "",
) -> list[Finished]:
    """Train the jobs on a cluster, `workers` at a time or as many as it takes; what came of them, in their order.

    A run has `threads` CPUs, and a GPU if the cluster has any; one of several `processes`, that for each, on one node.
    Complete runs are passed over, others go on where they stopped. A run whose node is lost goes on at another one; a
    run that fails does not stop the others. Ctrl-C stops all, each with a checkpoint, and raises KeyboardInterrupt; the
    second one does not wait for them.

    Args:
        address: "ray", the cluster that runs here or that RAY_ADDRESS names, else one of this machine alone;
            "host:port", "auto" or "ray://host:port" as Ray has them.
    """
    for name, value in (("workers", workers), ("threads", threads), ("processes", processes)):
        if value is not None and value < 1:
            raise RunError(f"{name} is {value}; it must be 1 or more.")
    jobs = [replace(job, to=job.to.absolute()) for job in jobs]
    check_apart(jobs)
    todo = [number for number, job in enumerate(jobs) if not is_complete(job)]
    ended = {number: Finished(job, None, 0.0) for number, job in enumerate(jobs) if number not in set(todo)}
    if todo:
        with ExitStack() as stack:
            ray = stack.enter_context(connected(address, watch))
            stack.enter_context(interrupted_by_all_signals())
            folder = stack.enter_context(_shared_folder([jobs[number].to for number in todo]))
            need, slots = _need(ray.nodes(), threads, processes)
            terms = Terms(
                at=str(Path.cwd()),
                shared=str(folder),
                threads=need.cpus // processes,
                processes=processes,
                command=command,
                data=os.environ.get("MOMENTEX_DATA"),
            )
            _check_nodes(ray, need, terms)
            side_by_side = min(workers or len(todo), slots, len(todo))
            watch.start([jobs[number] for number in todo], len(ended), side_by_side)
            stack.callback(watch.close)
            ended |= _Desk(ray, jobs, todo, need, terms, watch).serve(workers or len(todo))
    return [ended[number] for number in range(len(jobs))]


# --- the folder ------------------------------------------------------------------------------------------------------


@contextmanager
def _shared_folder(runs: Sequence[Path]) -> Iterator[Path]:
    """A locked folder next to the runs, by which nodes are asked whether they see it and its lock."""
    folder = Path(os.path.commonpath([run.parent for run in runs])) / SHARED
    try:
        with locked(folder):
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except RunInUse:
        said = (folder / LOCK).read_text(encoding="utf8").strip() if (folder / LOCK).exists() else "unknown"
        raise RunError(
            f"a sweep trains in {folder.parent} already ({said}): wait for it, or name another folder with --to."
        ) from None


# --- its nodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What Ray must find on a node for one run."""

    cpus: int
    gpus: int

    def fits(self, node: Mapping[str, Any]) -> int:
        """How many runs this node takes."""
        cpus, gpus = _has(node)
        if not node["Alive"]:
            return 0
        return min(cpus // self.cpus, gpus // self.gpus) if self.gpus else cpus // self.cpus


def _has(node: Mapping[str, Any]) -> tuple[int, int]:
    found = node["Resources"]
    return int(found.get("CPU", 0)), int(found.get("GPU", 0))


def _need(nodes: Sequence[Mapping[str, Any]], threads: int | None, processes: int = 1) -> tuple[Need, int]:
    """Of a run, and how many of them the cluster takes. By default, one thread, or a GPU's share of its node's CPUs."""
    having = [_has(node) for node in nodes if node["Alive"]]
    with_gpus = [(cpus, gpus) for cpus, gpus in having if gpus]
    each = threads or max(1, min((cpus // gpus for cpus, gpus in with_gpus), default=1))
    need = Need(each * processes, processes if with_gpus else 0)
    slots = sum(map(need.fits, nodes))
    if not slots:
        asked = f"{need.cpus} CPUs" + (f" and {need.gpus} GPUs" if need.gpus else "")
        there = ", ".join(f"{cpus} CPUs and {gpus} GPUs" for cpus, gpus in sorted(set(having), reverse=True))
        raise RunError(
            f"a run needs {asked}, and no node of the cluster has that: there "
            f"are nodes with {there or 'nothing'}. Take fewer threads or processes, or start such a node first."
        )
    return need, slots


def _sent() -> Callable[..., dict[str, Any]]:
    """The function that goes to nodes. It is made here so that it travels as code: a node may lack this package."""

    def call(versions: dict[str, str], name: str, *arguments: Any) -> dict[str, Any]:
        from importlib.metadata import PackageNotFoundError, version

        try:
            import momentex

            found = {"momentex": getattr(momentex, "__version__", "unknown"), "torch": version("torch")}
        except (ImportError, PackageNotFoundError) as error:
            return {"unfit": f"lacks a package: {error}. Install the same momentex[train,cluster] there"}
        other = [f"{what} {found[what]}, here is {here}" for what, here in versions.items() if found[what] != here]
        if other:
            return {"unfit": f"has {', '.join(other)}: runs of one sweep need the same versions"}
        from momentex.sweep import node

        return getattr(node, name)(*arguments)

    return call


def _versions() -> dict[str, str]:
    return {"momentex": momentex.__version__, "torch": version("torch")}


def _check_nodes(ray: Any, need: Need, terms: Terms) -> None:
    """Every node that could take a run can do so; otherwise nothing is begun."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(_sent())
    asked: dict[str, Any] = {}
    for node in filter(need.fits, ray.nodes()):
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ask.options(num_cpus=0, scheduling_strategy=there, max_retries=0)
        asked[_name(node)] = task.remote(_versions(), "fitness", asdict(terms))
    until = monotonic() + ANSWER
    problems: list[str] = []
    for name, ref in asked.items():
        try:
            why = ray.get(ref, timeout=max(1.0, until - monotonic()))["unfit"]
        except ray.exceptions.GetTimeoutError:
            why = f"did not answer within {ANSWER:.0f} s"
        except ray.exceptions.RayError as error:
            why = f"could not be asked: {_first_line(error)}"
        problems += [f"\n  {name} {why}."] if why else []
    if problems:
        raise RunError(f"the cluster has nodes that cannot be used:{''.join(problems)}\nNothing was trained.")


def _name(node: Mapping[str, Any]) -> str:
    return f"{node.get('NodeManagerHostname', 'a node')} ({node.get('NodeManagerAddress')}, {node['NodeID'][:8]})"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# --- the runs --------------------------------------------------------------------------------------------------------


class _Desk:
    """Gives runs to Ray, looks how far they are, and takes what came of them."""

    def __init__(
        self, ray: Any, jobs: Sequence[Job], todo: Sequence[int], need: Need, terms: Terms, watch: Watch
    ) -> None:
        self._ray, self._jobs, self._watch = ray, jobs, watch
        self._terms = asdict(terms)
        self._waiting = deque(todo)
        self._pending: dict[Any, int] = {}  # Ray's references to results that are not there yet
        self._ended: dict[int, Finished] = {}
        self._locks = {number: _touched(jobs[number]) for number in todo}  # until it changes, nobody has begun
        self._epochs: dict[int, int] = {}
        self._nodes: dict[str, str] = {}
        self._task = ray.remote(_sent())
        self._needs = {"num_cpus": need.cpus, "num_gpus": need.gpus, "max_retries": LOST}

    def serve(self, at_a_time: int) -> dict[int, Finished]:
        try:
            while self._waiting or self._pending:
                while self._waiting and len(self._pending) < at_a_time:
                    self._send(self._waiting.popleft())
                ready, _ = self._ray.wait(list(self._pending), timeout=LOOK)
                for ref in ready:
                    self._take(self._pending.pop(ref), ref)
                self._look()
        except KeyboardInterrupt:
            self._stop()
            raise
        return self._ended

    def _send(self, number: int) -> None:
        job = self._jobs[number]
        task = self._task.options(name=job.label, **self._needs)
        self._pending[task.remote(_versions(), "run", self._terms, encoded(job))] = number

    def _take(self, number: int, ref: Any) -> None:
        job = self._jobs[number]
        found: dict[str, Any]
        try:
            found = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            found = {"unfit": f"its task was lost: {_first_line(error)}"}
        if "unfit" in found:
            failure = None if is_complete(job) else f"the node {found['unfit']}"
            note(job, failure)
            finished = Finished(job, failure, 0.0)
        else:
            for text in found["said"]:
                self._watch.say(text)
            finished = Finished(job, found["failure"], found["seconds"])
        self._ended[number] = finished
        self._watch.finished(finished)

    def _look(self) -> None:
        """How far the runs are stands in their directories."""
        for number in self._pending.values():
            job = self._jobs[number]
            if number not in self._epochs and _touched(job) == self._locks[number]:
                continue
            epochs = len(Record(job.to).metrics())
            if self._epochs.get(number) != epochs:
                self._epochs[number] = epochs
                self._watch.running(job, epochs)
        alive = {node["NodeID"]: _name(node) for node in self._ray.nodes() if node["Alive"]}
        for lost in self._nodes.keys() - alive.keys():
            self._watch.say(f"{self._nodes[lost]} was lost: its runs go on at other nodes.")
        self._nodes = alive

    def _stop(self) -> None:
        """Every run ends with a checkpoint; at once, if this is interrupted too."""
        pending = list(self._pending)
        try:
            for ref in pending:
                self._ray.cancel(ref)
            while pending:
                _, pending = self._ray.wait(pending, timeout=LOOK)
        except KeyboardInterrupt:
            for ref in pending:
                self._ray.cancel(ref, force=True)
            raise


def _touched(job: Job) -> int:
    """When the run's lock was taken last."""
    try:
        return (job.to / LOCK).stat().st_mtime_ns
    except OSError:
        return 0
