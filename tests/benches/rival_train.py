"""A padded PyTorch training step on the samples of the bench `train`: transformers' model, GRPO's clipped policy loss on the
log-probs of the responses, gradient accumulation over padded micro-batches, clipping, AdamW in f32."""

import json
import sys
import time

try:
    import torch
    import transformers
except ImportError as error:
    print(error, flush=True)
    sys.exit(0)

job = json.loads(sys.stdin.readline())
transformers.logging.set_verbosity_error()
torch.set_num_threads(job["threads"])
model = transformers.AutoModelForCausalLM.from_pretrained(job["weights"], dtype=torch.float32).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98), weight_decay=0.0)


def micro_batches():
    """Samples of like lengths together, prompts padded on the left and responses on the right."""
    samples = sorted(job["samples"], key=lambda s: (len(s["response"]), len(s["prompt"])))
    for start in range(0, len(samples), job["micro_batch"]):
        chunk = samples[start : start + job["micro_batch"]]
        prompt_len = max(len(s["prompt"]) for s in chunk)
        response_len = max(len(s["response"]) for s in chunk)
        ids, mask = [], []
        for s in chunk:
            left, right = prompt_len - len(s["prompt"]), response_len - len(s["response"])
            ids.append([0] * left + s["prompt"] + s["response"] + [0] * right)
            mask.append([0] * left + [1] * (len(s["prompt"]) + len(s["response"])) + [0] * right)
        advantages = torch.tensor([[s["advantage"]] for s in chunk])
        yield torch.tensor(ids), torch.tensor(mask), response_len, advantages


def step():
    total = 0.0
    for ids, mask, response_len, advantages in micro_batches():
        # Only the rows that predict response tokens go through the head, as in TRL.
        logits = model(
            ids, attention_mask=mask, use_cache=False, logits_to_keep=response_len + 1
        ).logits[:, :-1]
        targets = ids[:, -response_len:]
        picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        log_probs = picked - torch.logsumexp(logits, dim=-1)
        ratio = torch.exp(log_probs - log_probs.detach())
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        weights = mask[:, -response_len:].float()
        loss = ((loss * weights).sum(1) / weights.sum(1)).sum() / len(job["samples"])
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


print("ready", flush=True)
for line in sys.stdin:
    start, cpu = time.perf_counter(), time.process_time()
    step()
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
