"""transformers' generate on the prompts of the bench `generate`: left-padded, sampling at temperature 1."""

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
model = transformers.AutoModelForCausalLM.from_pretrained(job["weights"], dtype=torch.float32).eval()
longest = max(map(len, job["prompts"]))
ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in job["prompts"]])
mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in job["prompts"]])


def run(new_tokens):
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )
    assert output.shape[1] == longest + new_tokens


run(2)
print("ready", flush=True)
for line in sys.stdin:
    start, cpu = time.perf_counter(), time.process_time()
    run(job["new_tokens"])
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
