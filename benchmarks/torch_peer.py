"""The peer of `peers.py`: the same training step in PyTorch, with DDP or FSDP2 over gloo on the CPU.

It runs in PyTorch's own interpreter, so it imports nothing of jaxdp. Every line "K" on stdin asks for K
steps; the answer is one line of JSON with the seconds that they took together.

It is as fast as plain PyTorch gets here: LayerNorm and learned positions (both fused or cheaper than RMSNorm
and rotary positions), fused causal attention, fused or foreach AdamW, an equal share of the cores a process.
"""

# pyright: reportMissingImports=false
import argparse
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_in = nn.Linear(width, ffn, bias=False)
        self.mlp_out = nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.width)
        self.position = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads, args.ffn) for _ in range(args.layers))
        self.final_norm = nn.LayerNorm(args.width, bias=False)
        self.head = nn.Linear(args.width, args.vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def wrap(model: nn.Module, strategy: str, devices: int) -> nn.Module:
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (devices,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank: int, args: argparse.Namespace, port: int, requests: int) -> None:
    """One process: steps as often as the first process is asked to."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.devices))
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.devices)
    model = wrap(Transformer(args), args.strategy, args.devices)
    kind = {"fused": True} if args.strategy == "ddp" else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **kind)
    generator = torch.Generator().manual_seed(rank)
    shape = (args.global_batch // args.devices, args.context + 1)
    tokens = torch.randint(args.vocab, shape, generator=generator)
    lines = os.fdopen(os.dup(requests)) if rank == 0 else None
    wanted = torch.zeros((), dtype=torch.long)
    while True:
        if lines is not None:
            wanted.fill_(int(lines.readline() or 0))
        dist.broadcast(wanted, 0)
        if not wanted:
            break
        start = time.perf_counter()
        for _ in range(int(wanted)):
            step(model, optimizer, tokens, args.vocab)
        dist.barrier()
        if rank == 0:
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
    dist.destroy_process_group()


def step(model: nn.Module, optimizer, tokens, vocab: int) -> None:
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, vocab), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), required=True)
    for name in ("devices", "layers", "width", "heads", "ffn", "context", "vocab", "global-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    requests = os.dup(sys.stdin.fileno())
    os.set_inheritable(requests, True)
    mp.start_processes(work, args=(args, port, requests), nprocs=args.devices, start_method="fork")


if __name__ == "__main__":
    main()
