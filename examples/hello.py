"""Say hello: a script is ordinary Python, and what stands outside of handlers runs once, here."""

from anyprobe import session

print(f"hello, process {session.pid} ({session.exe})")
