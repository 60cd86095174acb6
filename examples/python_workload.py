"""An ordinary program that knows nothing of anyprobe: it parses, compresses, hashes, sorts, and prints its own rate."""

import hashlib
import json
import time
import zlib

document = {"a": list(range(20)), "b": {"x": "y" * 30}}
text = json.dumps(document).encode() * 8

while True:
    began, operations = time.monotonic(), 0
    while time.monotonic() - began < 0.1:
        assert json.loads(json.dumps(document)) == document
        assert zlib.decompress(zlib.compress(text, 1)) == text
        hashlib.sha256(text).hexdigest()
        sorted(document["a"], key=lambda number: -number)
        operations += 1
    print(f"{time.monotonic()} {operations / (time.monotonic() - began)}", flush=True)
