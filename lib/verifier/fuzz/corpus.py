"""The kept corpus, `../tests/fuzz/TARGET.jsonl`, as libFuzzer's folder of files, and back.

python3 corpus.py unpack TARGET FOLDER
python3 corpus.py pack TARGET FOLDER [MAX_BYTES]     the shortest inputs first, up to MAX_BYTES of them
"""

import hashlib
import json
import sys
from pathlib import Path


def unpack(kept, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for line in kept.read_text().splitlines():
        data = json.loads(line).encode()
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def pack(kept, folder, max_bytes):
    lines, total = [], 0
    for data in sorted((path.read_bytes() for path in folder.iterdir()), key=lambda data: (len(data), data)):
        try:
            line = json.dumps(data.decode(), ensure_ascii=False)
        except UnicodeDecodeError:
            continue
        total += len(line.encode()) + 1
        if total > max_bytes:
            break
        lines.append(line + "\n")
    kept.write_text("".join(lines))


verb, target, folder = sys.argv[1:4]
kept = Path(__file__).parent.parent / "tests" / "fuzz" / f"{target}.jsonl"
if verb == "pack":
    pack(kept, Path(folder), int(sys.argv[4]) if len(sys.argv) > 4 else 100_000)
else:
    unpack(kept, Path(folder))
