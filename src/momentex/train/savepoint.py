"""Stop and go on: a run as a checkpoint, and a checkpoint as a run."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from momentex.errors import RunError
from momentex.train import checkpoint
from momentex.train.checkpoint import Snapshot, join, merged, split
from momentex.train.record import Record
from momentex.train.resolved import changed, identity, to_json
from momentex.train.run import Position, Run


def save(run: Run, record: Record) -> None:
    """A checkpoint of this position; a RunError instead of one whose weights are not finite."""
    _check_weights(run)
    own = run.place.gather((run.place.generators(), run.at.loss, run.at.images))
    if not run.place.first:
        return
    at = {name: value for name, value in asdict(run.at).items() if name not in ("loss", "images")}
    parts = [
        split(run.task.model.state_dict(), "model"),
        split(run.optimizer.state_dict(), "optimizer"),
        split(run.rate.state_dict(), "rate"),
        split(run.scaler.state_dict(), "scaler"),
        split(own, "processes"),
        Snapshot({}, {"at": at, "made_of": _made_of(run)}),
    ]
    if run.average is not None:
        parts.append(split(run.average.state_dict(), "average"))
    checkpoint.save_position(record.checkpoints, run.number, merged(parts))


def save_best(run: Run, record: Record) -> None:
    """The weights that are measured, if they are those of the best epoch so far."""
    if run.place.first and run.at.step == 0 and run.at.best.get("epoch") == run.at.epoch:
        weights = split(run.measured.state_dict(), "model")
        checkpoint.write(record.best, merged([weights, Snapshot({}, {"metrics": run.at.best})]))


def resume(run: Run, record: Record) -> list[str]:
    """Bring the run to the newest checkpoint that is whole; what there is to say about that.

    The first process reads and the others are told: they need not see the same disk. Without a checkpoint, one is
    written of the beginning: what a checkpoint cannot hold, and a full disk, are found before any work is done.
    """
    snapshot, problems = run.place.first_does(lambda: checkpoint.newest(record.checkpoints))
    said = [f"{problem} The one before it is used." for problem in problems]
    if snapshot is None:
        if run.place.first_does(record.metrics):
            raise RunError(
                f"{record.folder} has metrics and no checkpoint: a new run would overwrite them. Put the checkpoint "
                "back, name another folder with --to, or remove this one."
            )
        save(run, record)
        return said
    said += _restore(run, snapshot)
    if run.place.first and record.restore(run.at.rows):
        said.append("metrics.jsonl was not what the checkpoint says, and was written anew.")
    save_best(run, record)
    if run.at.epoch == run.recipe.epochs:
        said.append(f"all {run.at.epoch} epochs are complete")
    elif run.number:
        said.append(f"going on after epoch {run.at.epoch}, step {run.at.step}")
    return said


def load(model: nn.Module, snapshot: Snapshot, name: str) -> None:
    """Give a model the weights and buffers that were saved as `name`."""
    state = OrderedDict(join(snapshot, name))
    # The versions of the modules' states, which state_dict() adds: some modules would convert a state without them.
    state._metadata = model.state_dict()._metadata  # pyrefly: ignore[missing-attribute]
    model.load_state_dict(state)


def _restore(run: Run, snapshot: Snapshot) -> list[str]:
    there, now = snapshot.facts.get("made_of", {}), _made_of(run)
    if lines := changed(there, now):
        raise RunError("the checkpoint is of another recipe or of other data:" + "".join(f"\n  {x}" for x in lines))
    try:
        load(run.task.model, snapshot, "model")
        run.optimizer.load_state_dict(join(snapshot, "optimizer"))
        run.rate.load_state_dict(join(snapshot, "rate"))
        run.scaler.load_state_dict(join(snapshot, "scaler"))
        if run.average is not None:
            load(run.average, snapshot, "average")
        processes = join(snapshot, "processes")
        run.at = Position(**snapshot.facts["at"])
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"the checkpoint does not fit {run.recipe.model}, whose code must have changed since: {error} Bring back "
            "the code, or name another folder with --to."
        ) from error
    _as_made(run.optimizer)
    return _own(run, processes)


def _as_made(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's state in the memory format of its parameters, as the optimizer itself makes it."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name != "step" and isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _own(run: Run, processes: list[Any]) -> list[str]:
    """What each process has for itself; with another number of processes, the first one has the sums."""
    rank, world = run.place.rank, run.place.world
    if len(processes) == world:
        generators, run.at.loss, run.at.images = processes[rank]
        run.place.set_generators(generators)
        return []
    if run.place.first:
        run.at.loss, run.at.images = (sum(process[i] for process in processes) for i in (1, 2))
        run.place.set_generators(processes[0][0])
    return [f"{len(processes)} processes there, {world} now: pairs are drawn anew, and the result will be another."]


def _made_of(run: Run) -> dict[str, Any]:
    """What a checkpoint must agree on with the run that it is to go on as."""
    return {"recipe": to_json(identity(run.recipe)), "data": dict(run.task.facts)}


def _check_weights(run: Run) -> None:
    parameters = list(run.task.model.named_parameters())
    if not parameters or bool(torch.stack([p.detach().isfinite().all() for _, p in parameters]).all()):
        return
    name = next(name for name, p in parameters if not bool(p.detach().isfinite().all()))
    raise not_finite(run, f"the weights {name} after step {run.at.step} of epoch {run.at.epoch + 1}")


def not_finite(run: Run, what: str) -> RunError:
    """The error for numbers that are not, with what the exchange did last."""
    log = ", ".join(f"{name} {value:.3g}" for name, value in run.mixing.log().items()) or "no exchange"
    return RunError(
        f"{what} are not finite, at a learning rate of {run.at.lr:g} ({log}). The last checkpoint is of before. Lower "
        "optimizer.lr, set clip, or train in float32."
    )
