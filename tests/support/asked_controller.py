"""The other end of controller.py: a controller that can be killed at every call that it makes."""

import json
import subprocess
import sys
from pathlib import Path


class Controller:
    """The other end of controller.py."""

    def __init__(self, program: str = "controller.py") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, *words: object) -> dict:
        """Have it do something in a fresh process and return how that went."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the controller's parent died"
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(180)
        self.process.stdout.close()
