"""The loop of `loop_against_trl.sh` by TRL's GRPOTrainer: the same weights, prompts, batch, group, length, learning rate and
threads. Says its numbers as one JSON line: seconds of all steps, of those behind the first, and the mean reward of each step."""

import json
import os
import re
import sys
import time

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

job = json.loads(sys.argv[1])
torch.set_num_threads(job["threads"])
transformers.logging.set_verbosity_error()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=job["weights"] + "/tokenizer.json")
tokenizer.eos_token = tokenizer.pad_token = job["eos"]
with open(job["prompts"]) as file:
    rows = [json.loads(line) for line in file]
data = Dataset.from_list([{"prompt": row["prompt"], "label": row["label"]} for row in rows])


def last_number(completions, label, **_):
    """1 where the last number of a completion is the label, as `number` of slime-reward."""
    found = [re.findall(r"-?\d+", text) for text in completions]
    return [float(bool(numbers) and int(numbers[-1]) == int(right)) for numbers, right in zip(found, label)]


settings = GRPOConfig(
    output_dir=job["output"],
    use_cpu=job["device"] == "cpu",
    bf16=job["dtype"] == "bf16",
    fp16=False,
    gradient_checkpointing=False,
    per_device_train_batch_size=job["batch"],
    gradient_accumulation_steps=job["groups"] * job["samples"] // job["batch"],
    num_generations=job["samples"],
    max_completion_length=job["response_len"],
    max_steps=job["steps"],
    learning_rate=job["lr"],
    lr_scheduler_type="constant",
    warmup_steps=0,
    adam_beta2=0.98,
    weight_decay=0.0,
    max_grad_norm=1.0,
    beta=0.0,
    loss_type="grpo",
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    shuffle_dataset=False,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    seed=job["seed"],
)
model = transformers.AutoModelForCausalLM.from_pretrained(job["weights"], dtype=torch.float32)
ends = []


class Clock(transformers.TrainerCallback):
    """When each step has ended."""

    def on_step_end(self, *_, **__):
        ends.append(time.perf_counter())


trainer = GRPOTrainer(
    model=model,
    reward_funcs=last_number,
    args=settings,
    train_dataset=data,
    processing_class=tokenizer,
    callbacks=[Clock()],
)
start = time.perf_counter()
sys.stdout = open(os.devnull, "w")
trainer.train()
sys.stdout = sys.__stdout__
rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
print(json.dumps({"wall_s": ends[-1] - start, "rest_s": ends[-1] - ends[0], "rewards": rewards}))
