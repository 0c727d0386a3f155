#!/usr/bin/env python3
"""The main job's twin in PyTorch: the same Llama-kind model, data order, optimizer and schedule, so that speed and
loss can be compared side by side.

usage: torch_twin.py TEXT STEPS [--dtype bf16|fp32] [--threads 2]   prints one JSON line per 10 steps and a summary
"""
import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, SEQ = 6, 384, 6, 2, 1024, 256, 256
GLOBAL_BATCH, MICRO_BATCH = 16, 8


class RmsNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.weight.to(x.dtype)


def rope_tables():
    dim = HIDDEN // HEADS
    angle = torch.arange(SEQ)[:, None] * (10000.0 ** (-torch.arange(0, dim, 2) / dim))[None, :]
    return torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        dim = HIDDEN // HEADS
        self.n1, self.n2 = RmsNorm(), RmsNorm()
        self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * dim, bias=False)
        self.o = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = torch.nn.Linear(FFN, HIDDEN, bias=False)
        self.register_buffer("mask", torch.full((SEQ, SEQ), float("-inf")).triu(1))
        cos, sin = rope_tables()
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x):
        b, s, _ = x.shape
        dim = HIDDEN // HEADS
        q, k, v = self.qkv(self.n1(x)).split([HIDDEN, KV_HEADS * dim, KV_HEADS * dim], -1)
        q = q.view(b, s, HEADS, dim).transpose(1, 2)
        k = k.view(b, s, KV_HEADS, dim).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1)
        v = v.view(b, s, KV_HEADS, dim).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1)
        q, k = rotate(q, self.cos.to(q.dtype), self.sin.to(q.dtype)), rotate(k, self.cos.to(k.dtype), self.sin.to(k.dtype))
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim) + self.mask.to(q.dtype)
        y = scores.softmax(-1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, s, HIDDEN))
        gate, up = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RmsNorm()
        self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("o.weight", "down.weight")) else 0.02
                torch.nn.init.normal_(p, 0, std)

    def forward(self, x, y):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).float().view(-1, VOCAB), y.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("steps", type=int)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(42)
    data = torch.frombuffer(bytearray(open(args.text, "rb").read()), dtype=torch.uint8).long()
    data = data[:int(len(data) * 0.9)]
    model = Model()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    windows = (len(data) - SEQ) // SEQ
    order = torch.randperm(windows)
    times = []
    for step in range(args.steps):
        warmup, total = 20, 300
        lr = 1e-3 * (step + 1) / warmup if step < warmup else 1e-4 + 0.9e-3 * 0.5 * (
            1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup - 1))))
        for group in optimizer.param_groups:
            group["lr"] = lr
        begin = time.monotonic()
        loss_sum = 0.0
        for micro in range(GLOBAL_BATCH // MICRO_BATCH):
            first = step * GLOBAL_BATCH + micro * MICRO_BATCH
            starts = [int(order[(first + i) % windows]) * SEQ for i in range(MICRO_BATCH)]
            x = torch.stack([data[s:s + SEQ] for s in starts])
            y = torch.stack([data[s + 1:s + SEQ + 1] for s in starts])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = model(x, y) * MICRO_BATCH / GLOBAL_BATCH
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        times.append(time.monotonic() - begin)
        if (step + 1) % 10 == 0 or step == 0:
            print(json.dumps({"step": step + 1, "loss": round(loss_sum, 4),
                              "tokens_per_s": round(GLOBAL_BATCH * SEQ / statistics.median(times[-10:]), 1)}), flush=True)
    print(json.dumps({"torch": torch.__version__, "dtype": args.dtype, "threads": args.threads, "steps": args.steps,
                      "median_tokens_per_s": round(GLOBAL_BATCH * SEQ / statistics.median(times), 1)}))


main()
