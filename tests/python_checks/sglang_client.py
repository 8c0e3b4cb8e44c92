"""Calls as SGLang's documentation shows them, with `requests`: python sglang_client.py URL TOKEN. Prints JSON."""
import json
import sys

import requests

url, token = sys.argv[1:]
session = requests.Session()
session.headers["Authorization"] = f"Bearer {token}"
post = lambda path, body=None: session.post(f"{url}{path}", json=body)

assert session.get(f"{url}/health").status_code == 200
assert session.get(f"{url}/health_generate").status_code == 200
info = session.get(f"{url}/get_model_info").json()
assert info["is_generation"] is True
assert session.get(f"{url}/server_info").json()["model_path"] == info["model_path"]

sampling = {"temperature": 0, "max_new_tokens": 8}
body = {"text": "The capital of France is", "sampling_params": sampling}
answer = post("/generate", body).json()
assert answer["meta_info"]["completion_tokens"] <= 8 and answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")

# As SGLang's streaming example: the text so far in each event.
before, last = 0, None
response = session.post(f"{url}/generate", json=body | {"stream": True}, stream=True)
for chunk in response.iter_lines(decode_unicode=False):
    chunk = chunk.decode("utf-8")
    if chunk and chunk.startswith("data:"):
        if chunk == "data: [DONE]":
            break
        last = json.loads(chunk[5:].strip("\n"))
        assert len(last["text"]) >= before
        before = len(last["text"])
assert last["text"] == answer["text"]

batch = post("/generate", {"text": ["a", "b c"], "sampling_params": sampling}).json()
assert len(batch) == 2

# What the framework slime reads of a rollout, and of a teacher's log-probs.
rollout = post("/generate", {"input_ids": [5, 9, 40], "sampling_params": sampling | {"temperature": 1.0, "skip_special_tokens": False},
                             "return_logprob": True}).json()
pairs = [(item[0], item[1]) for item in rollout["meta_info"]["output_token_logprobs"]]
assert [token for _, token in pairs] == rollout["output_ids"] and rollout["meta_info"]["weight_version"]
tokens = [5, 9, 40] + rollout["output_ids"]
teacher = post("/generate", {"input_ids": tokens, "sampling_params": {"temperature": 1.0, "max_new_tokens": 0, "skip_special_tokens": False},
                             "return_logprob": True, "logprob_start_len": 0}).json()
scored = [item[0] for item in teacher["meta_info"]["input_token_logprobs"][1:]][-len(pairs):]
assert all(abs(a - b) < 1e-4 for a, (b, _) in zip(scored, pairs)), (scored, pairs)

assert post("/pause_generation", {"mode": "retract"}).status_code == 200
assert post("/continue_generation", {}).status_code == 200
assert post("/abort_request", {"rid": "", "abort_all": True}).status_code == 200
assert session.get(f"{url}/flush_cache").status_code == 200
update = post("/update_weights_from_disk", {"model_path": info["model_path"], "weight_version": "5"}).json()
assert update["success"] is True
assert session.get(f"{url}/get_weight_version").json()["weight_version"] == "5"
load = session.get(f"{url}/v1/loads?include=core").json()
assert sum(rank["num_total_reqs"] for rank in load["loads"]) == 0
refused = post("/generate", {"text": "a", "sampling_params": {"no_such": 1}})
assert refused.status_code == 400 and "no_such" in refused.json()["error"]["message"]
print(json.dumps({"tokens": len(pairs)}))
