"""An agent's session with `memplan mcp`: a config that dies, the error read, the change, and the mended job checked.

Needs the official SDK of the Model Context Protocol (`pip install '.[mcp]'` in the checkout).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client

HERE = Path(__file__).resolve().parent
JOB = {"gpu": "h100-80gb"}
OF_FILE = {"file": "check/train.yaml", "beside": ["check/zero3.yaml"], "job": JOB}
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 31.31 GiB. GPU 0 has a total capacity of 79.10 GiB"
)
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("check", {"files": ["check/train.yaml"], "beside": ["check/zero3.yaml"], "job": JOB}),
    ("diagnose", {"text": ERROR, **OF_FILE}),
    ("plan", {**OF_FILE, "top": 1}),
    ("estimate", {**OF_FILE, "job": {**JOB, "batch_size": 4, "gradient_accumulation_steps": 4}}),
    ("explain", {"term": "logits"}),
    ("estimate", {"file": "/etc/hosts"}),
    ("estimate", {"job": {"model": "llama-3.1-9b"}}),
)
SHOWN = 800
"""Characters of an answer."""


async def session() -> None:
    """Start the server, list its tools, make the calls; every line is what went over the wire."""
    command = [sys.executable, "-m", "memplan", "mcp", str(HERE)]
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        listed = await client.list_tools()
        print("tools:", ", ".join(tool.name for tool in listed.tools))
        for name, arguments in CALLS:
            print(f"\n> {name} {json.dumps(arguments, ensure_ascii=False)}")
            answer = await client.call_tool(name, arguments)
            text = "\n".join(part.text for part in answer.content if part.type == "text")
            print(("! " if answer.is_error else "< ") + (text if len(text) <= SHOWN else f"{text[:SHOWN]} …"))


if __name__ == "__main__":
    anyio.run(session)
