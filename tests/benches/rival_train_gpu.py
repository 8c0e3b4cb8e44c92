"""The step of the bench `train_gpu` in transformers: Qwen3 with SDPA in bf16, weights and moments in bf16, fused AdamW. Each
`run` is the next of: the layers (forward and backward), then the whole step, for every length of the sequences."""

import itertools
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
config = transformers.Qwen3Config(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=job["num_layers"],
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=False,
    use_cache=False,
)
config._attn_implementation = "sdpa"
torch.manual_seed(1)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.Qwen3ForCausalLM(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
grads = torch.randn(1, job["num_tokens"], config.hidden_size, device="cuda") * 1e-3


def layers(ids):
    hidden = model.model(ids, use_cache=False).last_hidden_state
    hidden.backward(grads.view_as(hidden))


def step(ids):
    model(ids, labels=ids, use_cache=False).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


cases = []
for length in job["lens"]:
    ids = torch.randint(150_000, (job["num_tokens"] // length, length), device="cuda")
    cases += [(layers, ids), (step, ids)]
print("ready", flush=True)
for line, (part, ids) in zip(sys.stdin, itertools.cycle(cases)):
    optimizer.zero_grad()
    torch.cuda.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    part(ids)
    torch.cuda.synchronize()
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
