"""Where a run computes: devices and processes, of one machine or many.

accelerate's PartialState finds them, from torchrun or `accelerate launch`, and starts the process group.
Its Accelerator is not used: precision is one line of torch here, and it allows one precision for each process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed
from accelerate import PartialState
from torch import Tensor, nn

from momentex.errors import RunError
from momentex.train.recipe import Precision

T = TypeVar("T")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Place(NamedTuple):
    """This process: its device, its rank, and how many there are."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @staticmethod
    def here() -> Place:
        """Join the other processes, if there are any."""
        # Without `cpu`, accelerate takes several processes of a machine that has no accelerator for lonely ones.
        state = PartialState(cpu=not torch.accelerator.is_available())
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started != state.num_processes:
            raise RunError(
                f"this is one of {started} processes (WORLD_SIZE), and {state.num_processes} found each other. Start "
                "them with torchrun or `accelerate launch`, before anything else makes accelerate's state."
            )
        return Place(state.device or torch.device("cpu"), state.process_index, state.num_processes)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def autocast(self, precision: Precision) -> torch.autocast:
        """The forward pass in this precision."""
        return torch.autocast(self.device.type, DTYPES[precision], precision != "float32")

    def replicated(self, model: nn.Module) -> nn.Module:
        """What the loop calls: gradients are averaged over processes."""
        if self.world == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def same_buffers(self, model: nn.Module) -> None:
        """Buffers are those of the first process: unlike gradients, running statistics are not averaged."""
        for buffer in model.buffers() if self.world > 1 else ():
            whole = buffer.contiguous()
            torch.distributed.broadcast(whole, 0)
            buffer.copy_(whole)

    def sum(self, values: list[float]) -> list[float]:
        """Each number summed over the processes."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(found, value)
        return found

    def first_does(self, work: Callable[[], T]) -> T:
        """The first process works, the others wait and get the same result, or the same error."""
        if self.world == 1:
            return work()
        outcome: list[Any] = [None]
        if self.first:
            try:
                outcome = [(work(), None)]
            except ValueError as error:
                outcome = [(None, error)]
        torch.distributed.broadcast_object_list(outcome, src=0)
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def generators(self) -> list[Tensor]:
        """The state of torch's own generators, which modules like dropout use: CPU, then this process's GPU."""
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def set_generators(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda" and len(states) > 1:
            torch.cuda.set_rng_state(states[1], self.device)
