"""What the interpreter does while all its functions are counted: prints operations per second, five times a second."""

import json
import time

document = {"a": list(range(20)), "b": {"x": "y" * 30}}
print("ready", flush=True)
while True:
    start = time.monotonic()
    operations = 0
    while time.monotonic() - start < 0.2:
        text = json.dumps(document)
        json.loads(text)
        sorted(document["a"], key=lambda x: -x)
        "".join(str(i) for i in document["a"])
        operations += 1
    print(f"{start:.6f} {operations / (time.monotonic() - start):.1f}", flush=True)
