"""Prints what the package wandb reads from the log argv[1]: {"kinds": [...], "run": {...}, "history": [{...}, ...]}.

The package's messages read the records. Versions that have a reader of the log themselves (up to 0.19) read it with
that one; for the others the log is taken apart here, checksums included.
"""

import json
import struct
import sys
import zlib

from wandb.proto import wandb_internal_pb2 as messages


def parts(log):
    """The records of the log, by the definition of the format."""
    assert struct.unpack("<4sHB", log[:7]) == (b":W&B", 0xBEE1, 0), log[:7]
    at, record = 7, b""
    while at < len(log):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        checksum, length, kind = struct.unpack("<IHB", log[at : at + 7])
        data = log[at + 7 : at + 7 + length]
        assert zlib.crc32(data, zlib.crc32(bytes([kind]))) == checksum, f"checksum at {at}"
        record += data
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def scan(path):
    """The same by the package's own reader, where it has one."""
    try:
        from wandb.sdk.internal.datastore import DataStore
    except ImportError:
        with open(path, "rb") as file:
            yield from parts(file.read())
        return
    store = DataStore()
    store.open_for_scan(path)
    while (data := store.scan_data()) is not None:
        yield data


kinds, run, history = [], {}, []
for data in scan(sys.argv[1]):
    record = messages.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    kinds.append(kind)
    if kind == "run":
        run = {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
        run["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    elif kind == "history":
        history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
print(json.dumps({"kinds": kinds, "run": run, "history": history}))
