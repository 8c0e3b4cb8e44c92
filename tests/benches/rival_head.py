"""Liger's fused linear cross-entropy, forward and backward, on the shapes of the bench `head`."""

import json
import sys
import time

try:
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
except ImportError as error:
    print(error, flush=True)
    sys.exit(0)

job = json.loads(sys.stdin.readline())
rows, vocab, dim = job["rows"], job["vocab"], job["dim"]
on = {"dtype": torch.bfloat16, "device": "cuda"}
hidden = torch.randn(rows, dim, **on, requires_grad=True)
weight = (torch.randn(vocab, dim, **on) * (2 / dim**0.5)).requires_grad_()
targets = torch.randint(0, vocab, (rows,), device="cuda")
loss = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)


def step():
    torch.autograd.grad(loss(weight, hidden, targets), (hidden, weight))
    torch.cuda.synchronize()


step()
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
step()
print(f"Liger: at most {(torch.cuda.max_memory_allocated() - before) / 1e9:.3f} GB", file=sys.stderr)
print("ready", flush=True)
for line in sys.stdin:
    start, cpu = time.perf_counter(), time.process_time()
    step()
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
