#!/usr/bin/env python3
"""The client of tunnel contract A.7 on `websockets`, with max_size lifted: usage websockets_client.py ENDPOINT AGENT."""

import asyncio
import json
import struct
import sys

import websockets
from reply import reply


async def run_agent(endpoint: str, agent: str) -> None:
    headers = {"Authorization": "Bearer bench"}
    url = f"{endpoint}?job=bench&agent={agent}"
    async with websockets.connect(
        url, additional_headers=headers, ping_interval=20, ping_timeout=10, max_size=None
    ) as ws:
        async for msg in ws:
            if isinstance(msg, str):
                kind = json.loads(msg).get("type")
                if kind == "warmup":
                    await ws.send(json.dumps({"type": "ready"}))
                elif kind == "drain":
                    return
            else:
                (sid_len,) = struct.unpack(">I", msg[:4])
                sid = msg[4 : 4 + sid_len].decode("utf-8")
                payload = msg[4 + sid_len :]
                await ws.send(struct.pack(">I", sid_len) + sid.encode("utf-8") + reply(payload))


asyncio.run(run_agent(sys.argv[1], sys.argv[2]))
