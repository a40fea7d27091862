"""How `fully_shard` cuts weights into parts, and which process holds which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor, nn

from spectralclip._clipping import LEAVING_OUT
from spectralclip._models import FoundLayer, is_sharded_tensor, local, sharded_modules
from spectralclip._training.distributed.process_group import ProcessGroup


class Layout(NamedTuple):
    """Which part of a tensor each process holds."""

    dim: int | None  # along which it is cut, as by `torch.chunk`; None where each holds the whole
    parts: int  # how many there are
    places: tuple[int, ...]  # by process, which part it holds
    replicas: tuple[int, ...]  # by process, the number of the replica that its part belongs to

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """What a process holds of the whole, as a view."""
        if self.dim is None:
            return whole
        size = whole.shape[self.dim]
        chunk = -(-size // self.parts)
        start = min(self.places[rank] * chunk, size)
        return whole.narrow(self.dim, start, min(chunk, size - start))

    def gives(self, rank: int, owner: int) -> bool:
        """Whether a process's part is needed for the owner to have the whole."""
        if self.dim is None:
            return rank == owner
        return self.replicas[rank] == self.replicas[owner]


def layout_of(tensor: Tensor, ranks: Sequence[int]) -> Layout:
    """The layout of a parameter over processes given by their global ranks.

    Raises:
        ValueError: It is cut in more than one way, as by tensor parallelism, or not evenly.
    """
    here = tuple(range(len(ranks)))
    if not is_sharded_tensor(tensor):
        return Layout(None, 1, (0,) * len(ranks), here)
    from torch.distributed.tensor import DTensor, Shard

    sharded = cast(DTensor, tensor)
    mesh, placements = sharded.device_mesh, sharded.placements
    cuts = [d for d, p in enumerate(placements) if not p.is_replicate() and mesh.size(d) > 1]
    if len(cuts) > 1 or any(type(placements[d]) is not Shard for d in cuts):
        raise ValueError(f"placed as {placements} on a mesh of shape {tuple(mesh.shape)}")
    if not cuts:
        return Layout(None, 1, (0,) * len(ranks), here)
    (cut,) = cuts
    coordinates = [(mesh.mesh == rank).nonzero()[0].tolist() for rank in ranks]
    others = [tuple(c[:cut] + c[cut + 1 :]) for c in coordinates]
    replicas = tuple(others.index(other) for other in others)
    places = tuple(c[cut] for c in coordinates)
    return Layout(cast(Shard, placements[cut]).dim, mesh.size(cut), places, replicas)


def group_of(model: nn.Module, layers: Mapping[str, FoundLayer]) -> ProcessGroup:
    """The processes over which the weights are sharded.

    Raises:
        ValueError: The weights of a layer are sharded in a way that is not supported.
    """
    if not sharded_modules(model):
        raise ValueError(
            "The weights are DTensors, and not by fully_shard: tensor parallel models are not "
            "supported."
        )
    tensors = {
        f"{own!r} of layer {name!r}": tensor
        for name, layer in layers.items()
        for module in layer.modules
        for own, tensor in (*module.named_parameters(), *module.named_buffers())
        if is_sharded_tensor(tensor)
    }
    meshes = {about: cast(Any, tensor).device_mesh for about, tensor in tensors.items()}
    first = next(iter(meshes))
    ranks = sorted(meshes[first].mesh.flatten().tolist())
    for about, tensor in tensors.items():
        if sorted(meshes[about].mesh.flatten().tolist()) != ranks:
            raise ValueError(
                f"{about} is sharded over other ranks than {first}: one mesh for all layers is "
                f"supported. {LEAVING_OUT}"
            )
        try:
            layout_of(tensor, ranks)
        except ValueError as error:
            raise ValueError(
                f"{about} is {error}: supported are weights cut along one dimension by "
                f"fully_shard, and copies of them; tensor parallel placements are not. "
                f"{LEAVING_OUT}"
            ) from None
    everyone = len(ranks) == dist.get_world_size()
    if not everyone and meshes[first].ndim > 1:
        raise ValueError(
            f"{first} is sharded over a mesh of shape {tuple(meshes[first].shape)} that leaves out "
            "some processes: supported are meshes of one dimension, and those of all processes."
        )
    group = None if everyone else meshes[first].get_group()
    return ProcessGroup(group, local(tensors[first]).device)
