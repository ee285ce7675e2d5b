"""One process or many: what each of them has to know."""

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
    """The processes that train together. Started by `torchrun`, there are several; else one.

    Arguments:
        rank: The number of this one.
        count: How many there are.
        device: Where this one computes.
    """

    rank: int
    count: int
    device: torch.device

    @classmethod
    def start(cls, device: torch.device | str | None = None) -> "Processes":
        """Joins the other processes, if there are any.

        Arguments:
            device: Where to compute; a GPU if there is one and None is said. Several processes take one GPU each.
        """
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={str(chosen)!r}, but PyTorch sees no GPU here; take 'cpu', or None for what there is"
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
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """A module whose gradients are averaged over all processes."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agree(self, text: str) -> bool:
        """Whether all processes say the same, as far as this one sees; if not, some of them see it."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        # Where they differ, the mean is not that of the largest, and not that of the smallest.
        return int(self.sum(torch.tensor(number, device=self.device))) == number * self.count

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.count > 1:
            dist.barrier()
