"""The official `openai` client against a server: python openai_client.py URL TOKEN. Prints JSON of what it saw."""
import json
import sys

from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

url, token = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Say 12"}]
seen = {"model": model}

whole = client.chat.completions.create(model=model, messages=messages, max_tokens=9, n=2, seed=4, logprobs=True, top_logprobs=3)
assert [choice.index for choice in whole.choices] == [0, 1]
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
told = whole.choices[0].logprobs.content
assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in told)
seen["text"] = whole.choices[0].message.content

stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=9, n=2, seed=4, stream=True, stream_options={"include_usage": True}
)
texts, finish, usage = ["", ""], [None, None], None
for chunk in stream:
    usage = chunk.usage or usage
    for choice in chunk.choices:
        texts[choice.index] += choice.delta.content or ""
        finish[choice.index] = choice.finish_reason or finish[choice.index]
assert texts == [choice.message.content for choice in whole.choices], (texts, whole)
assert finish == [choice.finish_reason for choice in whole.choices]
assert usage == whole.usage

schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
          "required": ["a", "b"], "additionalProperties": False}
forms = client.chat.completions.create(
    model=model, messages=messages, max_tokens=200, temperature=0.8, seed=1,
    response_format={"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}},
    extra_body={"min_p": 0.0},
)
if forms.choices[0].finish_reason == "stop":
    form = json.loads(forms.choices[0].message.content)
    assert set(form) == {"a", "b"} and 0 <= form["a"] <= 99 and form["b"] in ("x", "y"), form
    seen["form"] = form

tools = [{"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}}}]
plain = client.chat.completions.create(
    model=model, messages=messages, max_tokens=5, tools=tools, tool_choice="auto", extra_body={"ignore_eos": True})
assert plain.choices[0].message.content

done = client.completions.create(model=model, prompt=["1 + 1", "b"], max_tokens=5, logprobs=2, seed=2, stop=["~~"])
assert [choice.index for choice in done.choices] == [0, 1]
assert len(done.choices[0].logprobs.tokens) == len(done.choices[0].logprobs.token_logprobs)
text = "".join(chunk.choices[0].text for chunk in client.completions.create(
    model=model, prompt="1 + 1", max_tokens=5, seed=2, stop=["~~"], stream=True))
assert text == done.choices[0].text, (text, done.choices[0].text)

for error, call in [
    (NotFoundError, lambda: client.chat.completions.create(model="other", messages=messages)),
    (BadRequestError, lambda: client.chat.completions.create(model=model, messages=messages, temperature=-1)),
    (BadRequestError, lambda: client.completions.create(model=model, prompt="x" * 5000)),
    (AuthenticationError, lambda: OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()),
]:
    try:
        call()
    except error as raised:
        seen.setdefault("errors", []).append(raised.body["message"] if raised.body else str(raised))
    else:
        raise AssertionError(f"{error.__name__} expected")
print(json.dumps(seen))
