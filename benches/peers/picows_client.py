#!/usr/bin/env python3
"""A client on picows' core API: usage picows_client.py ENDPOINT AGENT."""

import asyncio
import sys

from picows import WSListener, WSMsgType, ws_connect
from reply import reply, split


class Agent(WSListener):
    def on_ws_frame(self, transport, frame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            head, payload = split(frame.get_payload_as_memoryview())
            transport.send(WSMsgType.BINARY, bytes(head) + reply(payload))
        elif frame.msg_type == WSMsgType.TEXT:
            text = frame.get_payload_as_utf8_text()
            if '"warmup"' in text:
                transport.send(WSMsgType.TEXT, b'{"type":"ready"}')
            elif '"drain"' in text:
                transport.disconnect()


async def main(endpoint: str, agent: str) -> None:
    url = f"{endpoint}?job=bench&agent={agent}"
    headers = {"Authorization": "Bearer bench"}
    transport, _ = await ws_connect(Agent, url, extra_headers=headers, max_frame_size=16 << 20)
    await transport.wait_disconnected()


asyncio.run(main(sys.argv[1], sys.argv[2]))
