"""One process or several: communication in distributed training."""

__all__ = ["Processes"]

import atexit
import hashlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """The processes that train together: several if started by `torchrun`, otherwise one.

    Arguments:
        rank: The number of this process.
        count: The number of processes.
        device: The device of this process.
    """

    rank: int
    count: int
    device: torch.device

    @classmethod
    def start(cls, device: torch.device | str | None = None) -> "Processes":
        """Join the other processes, if there are any.

        Arguments:
            device: The device; if None, a GPU if available. Each of several processes uses a GPU of its own.
        """
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={str(chosen)!r}, but PyTorch does not find a GPU; pass 'cpu', or None to choose automatically"
            )
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls(0, 1, chosen)
        if chosen.type == "cuda":
            chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(chosen)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
            atexit.register(dist.destroy_process_group)
        return cls(dist.get_rank(), dist.get_world_size(), chosen)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose gradients are averaged over all processes."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.count > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agree(self, text: str) -> bool:
        """Return whether all processes have the same text. If not, at least one of them returns False."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        # If they differ, the mean differs from the largest and from the smallest.
        return int(self.sum(torch.tensor(number, device=self.device))) == number * self.count

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.count > 1:
            dist.barrier()
