"""Train a small network on digits with several processes, no layer's norm above one.

Start it with one of

    torchrun --nproc-per-node 2 examples/train_distributed.py            # equal copies: DDP
    torchrun --nproc-per-node 2 examples/train_distributed.py --shard    # sharded: FSDP2

It runs on GPUs where there is one for each process, and on the CPU otherwise.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spectralclip as sc


def network() -> nn.Sequential:
    """A convolutional network for 28x28 digits."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def join() -> torch.device:
    """Meet the other processes; the device of this one."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    return torch.device("cuda", local)


def prepared(device: torch.device, shard: bool) -> nn.Module:
    """The network, sharded or replicated over the processes."""
    torch.manual_seed(0)  # the same start everywhere
    model = network().to(device)
    if not shard:
        return DistributedDataParallel(model)
    for block in model:
        if isinstance(block, nn.Sequential):
            fully_shard(block)
    fully_shard(model)
    return model


def train(model: nn.Module, device: torch.device, steps: int, say_every: int) -> sc.Attachment:
    """Train with norms kept in check: one line beside the optimizer."""
    images, labels = (x.to(device) for x in sc.demo.load_digits("train"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attachment = sc.attach(model, optimizer, images[:1], max_norm=1.0)
    generator = torch.Generator().manual_seed(dist.get_rank())  # other digits everywhere
    for step in range(1, steps + 1):
        batch = torch.randint(len(images), (32,), generator=generator)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % say_every == 0:
            say(f"step {step}: loss {mean(loss):.3f}, {largest(attachment.norms())}")
    return attachment


def mean(value: Tensor) -> float:
    """The mean over the processes."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def largest(norms: dict[str, float]) -> str:
    """The largest norm, and where it is."""
    name = max(norms, key=lambda layer: norms[layer])
    return f"largest norm {norms[name]:.4f} (layer {name})"


def say(text: str) -> None:
    """Print, once."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def require_equal_weights(model: nn.Module) -> None:
    """Raise unless every process has the same weights, bit for bit."""
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        copies = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, weight.contiguous())
        if not all(torch.equal(copy, weight) for copy in copies):
            raise AssertionError(f"{name} is not the same on every rank.")
    say("every rank has the same weights")


def accuracy(model: nn.Module, device: torch.device) -> float:
    """The share of test digits that are recognized; all processes have to ask."""
    images, labels = (x.to(device) for x in sc.demo.load_digits("test"))
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    """Train, compare the weights, and clip once more, exactly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shard", action="store_true", help="shard the weights with fully_shard")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    device = join()
    model = prepared(device, options.shard)
    attachment = train(model, device, options.steps, max(1, options.steps // 4))
    require_equal_weights(model)
    say(f"test accuracy {accuracy(model, device):.1%}")
    results = attachment.finalize()
    require_equal_weights(model)
    for name, result in results.items():
        say(f"layer {name}: norm {result.norm_before:.4f} -> {result.norm_after:.4f}")
    say(f"test accuracy {accuracy(model, device):.1%} after a last, full clip")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
