"""Runs the step that `bench` measures in PyTorch: float32, eager, the same model and adapters.

Run as a script with a JSON text of what is measured; prints a line of JSON. It imports nothing of
Aster, so that its memory is PyTorch's own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F


def peak_bytes() -> int:
    """The most memory that this process had."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


class Peer:
    """A llama with adapters, from a file of float32 numbers."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.weights: dict[str, torch.Tensor] = {}
        for name, shape, offset in task["tensors"]:
            count = int(np.prod(shape))
            found = np.fromfile(task["file"], np.float32, count, offset=offset).reshape(shape)
            self.weights[name] = torch.from_numpy(found)
        self.adapters: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name in task["adapted"]:
            down = self.weights.pop(f"{name} down").requires_grad_()
            up = torch.zeros(self.weights[name].shape[0], down.shape[0], requires_grad=True)
            self.adapters[name] = down, up
        self.parameters = [t for pair in self.adapters.values() for t in pair]
        self.optimizer = torch.optim.AdamW(self.parameters, weight_decay=0.0)
        self.rates = iter(task["rates"])
        table = torch.from_numpy(np.asarray(task["table"], np.float32))
        self.cos, self.sin = table[0], table[1]
        self.tokens = torch.tensor(task["tokens"])
        self.targets = torch.tensor(task["targets"])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Division by the root of the mean square."""
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.task["epsilon"])
        return x * scale * self.weights[name]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A product, and what an adapter adds."""
        result = x @ self.weights[name].T
        if name in self.adapters:
            down, up = self.adapters[name]
            result = result + (x @ down.T) @ up.T * self.task["scale"]
        return result

    def heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """[1, n, h * d] -> [1, h, n, d]."""
        return x.view(1, x.shape[1], count, -1).transpose(1, 2)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of pairs, or of halves."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        if self.task["halves"]:
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        a, b = x[..., 0::2], x[..., 1::2]
        turned = [a * cos - b * sin, a * sin + b * cos]
        return torch.stack(turned, -1).flatten(-2)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """Output of the last layer for each token: [n] -> [1, n, e]."""
        task, n = self.task, len(tokens)
        x = self.weights["token_embd.weight"][tokens][None]
        for i in range(task["layers"]):
            at = f"blk.{i}."
            h = self.norm(x, at + "attn_norm.weight")
            q, k, v = [
                self.heads(self.linear(h, f"{at}attn_{part}.weight"), task[count])
                for part, count in (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads"))
            ]
            q, k = self.rotate(q), self.rotate(k)
            group = task["heads"] // task["kv_heads"]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            o = o.transpose(1, 2).reshape(1, n, -1)
            x = x + self.linear(o, at + "attn_output.weight")
            h = self.norm(x, at + "ffn_norm.weight")
            inner = F.silu(self.linear(h, at + "ffn_gate.weight"))
            inner = inner * self.linear(h, at + "ffn_up.weight")
            x = x + self.linear(inner, at + "ffn_down.weight")
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[1, n, e] -> [n, v]."""
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return (self.norm(x, "output_norm.weight") @ head.T)[0]

    def step(self) -> float:
        """One step; returns its loss."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.logits(self.hidden(self.tokens)), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.param_groups[0]["lr"] = next(self.rates)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.task["clip"])
        self.optimizer.step()
        return float(loss.item())


def main() -> None:
    """Measures, and prints."""
    with open(sys.argv[1]) as file:
        task = json.load(file)
    torch.set_num_threads(task["threads"])
    peer = Peer(task)
    losses, walls, cpus = [], [], []
    for _ in range(task["steps"]):
        wall, cpu = time.perf_counter(), time.process_time()
        losses.append(peer.step())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    print(json.dumps({"losses": losses, "wall": walls, "cpu": cpus, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
