"""A minimal gateway as an application would write it: Starlette, httpx, aiosqlite, a lock per key.

It stores the transcript in two durable commits per turn and sends the whole history upstream. It
runs in an environment of its own: `python plain_gateway.py PORT UPSTREAM DATABASE`.
"""

# mypy: ignore-errors
import asyncio
import json
import sys
from collections import defaultdict
from contextlib import asynccontextmanager

import aiosqlite
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

PORT, UPSTREAM, DATABASE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
locks = defaultdict(asyncio.Lock)


@asynccontextmanager
async def lifespan(app):
    async with aiosqlite.connect(DATABASE) as database, httpx.AsyncClient(timeout=600) as client:
        await database.execute("pragma journal_mode = wal")
        await database.execute("pragma synchronous = full")
        await database.execute(
            "create table if not exists items (key text, seq integer, body text, "
            "primary key (key, seq))"
        )
        app.state.database, app.state.client = database, client
        yield


async def add(database, key, body):
    await database.execute(
        "insert into items select ?1, coalesce(max(seq), 0) + 1, ?2 from items where key = ?1",
        (key, json.dumps(body)),
    )
    await database.commit()


async def history(database, key):
    rows = await database.execute_fetchall(
        "select body from items where key = ? order by seq", (key,)
    )
    return [json.loads(row[0]) for row in rows]


async def respond(request):
    request_body = await request.json()
    key = request.headers.get("x-session-key", "")
    database, client = request.app.state.database, request.app.state.client
    if request_body.get("stream"):
        return StreamingResponse(
            stream(database, client, key, request_body), media_type="text/event-stream"
        )
    async with locks[key]:
        await add(database, key, {"role": "user", "content": request_body["input"]})
        body = {
            "model": request_body["model"],
            "input": await history(database, key),
            "store": False,
        }
        answer = (await client.post(f"{UPSTREAM}/v1/responses", json=body)).json()
        for item in answer["output"]:
            await add(database, key, item)
    return JSONResponse(answer)


async def stream(database, client, key, request_body):
    async with locks[key]:
        await add(database, key, {"role": "user", "content": request_body["input"]})
        body = {**request_body, "input": await history(database, key), "store": False}
        output = []
        async with client.stream("POST", f"{UPSTREAM}/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    if event["type"] == "response.completed":
                        output = event["response"]["output"]
                        for item in output:
                            await add(database, key, item)
                yield line + "\n"


async def ready(_):
    return PlainTextResponse("ok")


app = Starlette(
    routes=[Route("/", ready), Route("/v1/responses", respond, methods=["POST"])],
    lifespan=lifespan,
)
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error", access_log=False)
