"""How long docs/closed-loop.md takes: its commands one after the other, with a program in the place of the person.

    python tools/newcomer_minutes.py FOLDER      an empty folder; prints seconds for each step and the whole

The program asks ten questions over the API that the chat page uses, and gives each answer a thumb through the page's route, two in three of
them up. A person reads and types; what that takes is not in the figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RLHF = [sys.executable, "-m", "rlhf"]
URL = "http://127.0.0.1:8017"
ANIMALS = ("cow", "dog", "snake", "cat", "horse")
SECONDS_FOR_NEW_WEIGHTS = 30


def main() -> None:
    """Run and print."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    os.chdir(folder)
    seconds: dict[str, float] = {}

    def timed(name: str, *command: str) -> None:
        begin = time.monotonic()
        done = subprocess.run([*RLHF, *command], capture_output=True, text=True)
        seconds[name] = time.monotonic() - begin
        print(f"{seconds[name]:7.1f}  rlhf {' '.join(command)}", flush=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])

    timed("demo", "run", str(ROOT / "recipes/quickstart.yaml"))
    model = "runs/quickstart/ppo/model"
    timed("promote", "registry", "promote", model, "--reason", "the first champion")
    begin = time.monotonic()
    with serving() as lines:
        seconds["serve"] = time.monotonic() - begin
        print(f"{seconds['serve']:7.1f}  rlhf serve champion --store feedback.db (until it answers)", flush=True)
        begin = time.monotonic()
        thumbs = [ask_and_judge(number) for number in range(10)]
        seconds["thumbs"] = time.monotonic() - begin
        print(f"{seconds['thumbs']:7.1f}  ten answers, {sum(thumbs)} of them good", flush=True)
        timed("export", "feedback", "export", "thumbs.jsonl", "--events", "--kind", "binary", "--store", "feedback.db")
        timed("round", "run", str(ROOT / "recipes/closed_loop.yaml"))
        begin = time.monotonic()
        while not any("is version 2 now" in line for line in lines):
            if time.monotonic() - begin > SECONDS_FOR_NEW_WEIGHTS:
                print("the gate kept the first champion, or the server did not take the second")
                break
            time.sleep(0.1)
        else:
            print(f"{time.monotonic() - begin:7.1f}  until the server answered with the new weights", flush=True)
    print(f"{sum(seconds.values()):7.1f}  in all")


def ask_and_judge(number: int) -> bool:
    """A question, its answer, and a thumb; tells whether that was up."""
    question = ("What does a {} eat?", "Where does a {} live?")[number % 2].format(ANIMALS[number % len(ANIMALS)])
    messages = [{"role": "user", "content": question}]
    answer = post("/v1/chat/completions", model="champion", messages=messages, user="newcomer", max_tokens=40)
    text = answer["choices"][0]["message"]["content"]
    is_good = number % 3 != 0 and bool(text.strip())
    post("/v1/feedback", key=f"k{number}", kind="thumbs", completion_id=answer["id"], up=is_good, user="newcomer")
    return is_good


def post(path: str, **body: Any) -> Any:
    """JSON there and back."""
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def serving() -> Iterator[list[str]]:
    """The server of the page, once it answers; gives the lines that it prints."""
    command = [*RLHF, "serve", "champion", "--store", "feedback.db", "--port", URL.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []

    def keep() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)

    threading.Thread(target=keep, daemon=True).start()
    try:
        while not any("Chat at" in line for line in lines):
            if process.poll() is not None:
                raise SystemExit("".join(lines))
            time.sleep(0.05)
        yield lines
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
