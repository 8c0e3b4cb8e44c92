"""Prints what TensorBoard's own reader finds in the folder argv[1]: {tag: [[step, value], ...]}."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
accumulator.Reload()
tags = accumulator.Tags()["scalars"]
print(json.dumps({tag: [[event.step, event.value] for event in accumulator.Scalars(tag)] for tag in tags}))
