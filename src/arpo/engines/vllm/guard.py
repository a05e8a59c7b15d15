"""What stands before vLLM inside its own server: a token on every request, and one version of the weights at a time.

It is an ASGI middleware (`vllm serve --middleware`). It runs where vLLM lives and imports nothing of arpo; what it is
told at the start is in the variable ARPO_SERVING. vLLM's own key does not cover every path, and its calls for new
weights are for developers and come without one: they stay off. In their place:

    GET  /arpo/state                 which model, which weights
    POST /arpo/expect                new weights: names, sizes and checksums of the files, and maybe where they are
    PUT  /arpo/files/WEIGHTS/NAME    one of the files, where this machine does not see them
    POST /arpo/load                  take them: turns under way end first, every cache is emptied, turns that wait go on

Weights are named by the checksum of their files. A turn says which it is for (`X-Arpo-Weights`) and is refused with
status 409 where the server has others: so no turn spans two versions, whoever else talks to the server.
"""

import asyncio
import hashlib
import hmac
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LONGEST = 2**20  # bytes of a request of ours, but for files
PIECE = 2**22  # bytes of a file at once
NAME = re.compile(r"\w[\w.-]*\.(safetensors|json)")
UNKNOWN = ""  # the name of weights that were only half taken

Files = dict[str, tuple[int, str]]
"""Size and SHA-256 of each file, by its name."""


def files_of(folder: Path, names: Any = None) -> Files:
    """Of the weights in a folder; `names`: of these alone, as far as they are there."""
    found = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    paths = sorted(path for path in found if names is None or path.name in names)
    with ThreadPoolExecutor(8) as threads:  # several files at once: a large model has tens of gigabytes
        sums = threads.map(_checksum, paths)
        return {path.name: (path.stat().st_size, checksum) for path, checksum in zip(paths, sums, strict=True)}


def marks_of(folder: Path, names: Any) -> dict[str, tuple[int, int, int]]:
    """By which it is seen that files are others than those whose checksums were taken."""
    found = {name: (folder / name).stat() for name in names if (folder / name).is_file()}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found.items()}


def name_of(files: Files) -> str:
    """What tells these weights from any other."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def shape_of(config: Any) -> str:
    """What two checkpoints must have in common for one to take the other's weights."""
    text, vision = config.text_config, config.vision_config
    names = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size".split()
    parts = [config.model_type, *(getattr(text, name) for name in names)]
    parts += [getattr(vision, name) for name in ("depth", "hidden_size", "intermediate_size", "num_heads")]
    return "-".join(map(str, parts))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Worker:
    """What vLLM's workers can do beside their own (`--worker-extension-cls`)."""

    def take_weights(self: Any, folder: str) -> None:
        """Load them in place. A head that is the embeddings is not in the files, so vLLM leaves it as it is:

        on a CPU that is a packed copy of the old ones.
        """
        self.reload_weights(weights_path=folder)
        language = self.model_runner.get_model().language_model
        if language.config.tie_word_embeddings:
            head = language.lm_head.tie_weights(language.model.embed_tokens)
            head.quant_method.process_weights_after_loading(head)


class Guard:
    """See the module."""

    def __init__(self, app: Any) -> None:
        given = json.loads(os.environ["ARPO_SERVING"])
        self._app, self._token = app, given["token"]
        self._model, self._weights, self._limits = given["model"], given["weights"], given["limits"]
        self._incoming = Path(given["incoming"])  # a folder of our own, for files that are sent
        self._expected: dict[str, Files] = {}
        self._places: dict[str, tuple[Path, Any]] = {}  # of weights whose files were seen to be whole
        self._gate = asyncio.Lock()  # closed while weights change
        self._running = 0  # turns
        self._quiet = asyncio.Condition()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None  # nobody needs a websocket
        headers = dict(scope["headers"])
        try:
            if not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self._token}".encode()):
                raise Refused(401, "the token is missing or wrong: send it as Authorization: Bearer TOKEN")
            if scope["path"].startswith("/arpo/"):
                answer = await self._own(scope, receive)
                return await _answer(send, 200, answer)
            if scope["method"] != "POST":
                return await self._app(scope, receive, send)
            await self._begin(headers.get(b"x-arpo-weights", b"").decode("latin-1"))
        except Refused as refused:
            return await _answer(send, refused.status, {"error": str(refused)})
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:  # of a body that is none of ours
            return await _answer(send, 400, {"error": f"{type(error).__name__}: {error}"[:500]})
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            async with self._quiet:
                self._quiet.notify_all()

    async def _begin(self, wanted: str) -> None:
        async with self._gate:
            if wanted and wanted != self._weights:
                raise Refused(409, "other weights than these are loaded")
            self._running += 1

    async def _own(self, scope: Any, receive: Any) -> dict[str, Any]:
        match scope["method"], scope["path"].split("/")[2:]:
            case "GET", ["state"]:
                engine = scope["app"].state.engine_client
                if engine.errored:
                    raise Refused(503, "vLLM's engine has ended")
                return {"model": self._model, "weights": self._weights, "running": self._running, **self._limits}
            case "POST", ["expect"]:
                return await self._expect(json.loads(await _body(receive)))
            case "PUT", ["files", weights, name]:
                return await self._receive(weights, name, receive)
            case "POST", ["load"]:
                return await self._load(scope["app"].state.engine_client, json.loads(await _body(receive))["weights"])
        raise Refused(404, "there is no such call")

    async def _expect(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Which files are missing: none, where they are in the folder that was named, or were sent."""
        files: Files = {str(name): (int(size), str(checksum)) for name, (size, checksum) in asked["files"].items()}
        weights = name_of(files)
        if not files or not all(NAME.fullmatch(name) for name in files):
            raise Refused(400, "these are no names of files of weights")
        if weights == self._weights or self._place(weights) is not None:
            return {"missing": []}
        self._expected = {weights: files}  # of one version at a time
        for place in filter(None, (asked.get("folder"), self._incoming / weights)):
            marks = await asyncio.to_thread(marks_of, Path(place), files)
            found = await asyncio.to_thread(files_of, Path(place), files)
            if found == files:
                self._places = {weights: (Path(place), marks)}
                return {"missing": []}
        needed = sum(files[name][0] for name in files.keys() - found.keys())
        self._incoming.mkdir(parents=True, exist_ok=True)
        if needed > (free := shutil.disk_usage(self._incoming).free):
            raise Refused(507, f"the weights need {needed:,} bytes, and {free:,} are free in {self._incoming}")
        return {"missing": [name for name in files if found.get(name) != files[name]]}

    def _place(self, weights: str) -> Path | None:
        """Where they are; None: they were not seen to be whole, or are others by now."""
        place, marks = self._places.get(weights, (None, None))
        return place if place is not None and marks_of(place, marks) == marks else None

    async def _receive(self, weights: str, name: str, receive: Any) -> dict[str, Any]:
        """Write one file: as many bytes as were announced, and only if they are those."""
        if name not in (files := self._expected.get(weights, {})):
            raise Refused(404, "this file is not expected")
        size, checksum = files[name]
        (folder := self._incoming / weights).mkdir(exist_ok=True)
        part, digest, written = folder / f"{name}.part", hashlib.sha256(), 0
        try:
            with part.open("wb") as file:
                async for piece in _pieces(receive):
                    written += len(piece)
                    if written > size:
                        raise Refused(400, f"{name}: longer than announced")
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
            if (written, digest.hexdigest()) != (size, checksum):
                raise Refused(400, f"{name}: not the bytes that were announced")
            part.rename(folder / name)
        finally:
            part.unlink(missing_ok=True)
        return {}

    async def _load(self, engine: Any, weights: str) -> dict[str, Any]:
        async with self._gate:
            if weights == self._weights:
                return {}
            if self._place(weights) is None:
                raise Refused(409, "these weights were not announced, or are not complete")
            async with self._quiet:
                await self._quiet.wait_for(lambda: not self._running)
            if (place := self._place(weights)) is None:
                raise Refused(409, "these weights have changed where they lie")
            self._weights = UNKNOWN  # until all of them are there, and nothing is left of the others
            try:
                await engine.collective_rpc("take_weights", args=(str(place),))
                while not await engine.reset_prefix_cache():  # blocks are held for a moment after the last turn
                    await asyncio.sleep(0.01)
                await engine.reset_mm_cache()
                await engine.reset_encoder_cache()
                if self._place(weights) is None:
                    raise OSError("the files changed meanwhile")
            except Exception as error:
                first = str(error).strip().partition("\n")[0]
                raise Refused(500, f"vLLM did not take the weights: {type(error).__name__}: {first}"[:500]) from error
            self._weights = weights
            for old in self._incoming.glob("*"):
                if old.name != weights:
                    shutil.rmtree(old, ignore_errors=True)
            return {}


async def _pieces(receive: Any) -> Any:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(400, "the request broke off")
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def _body(receive: Any) -> bytes:
    body = b""
    async for piece in _pieces(receive):
        body += piece
        if len(body) > LONGEST:
            raise Refused(413, f"longer than {LONGEST:,} bytes")
    return body


async def _answer(send: Any, status: int, answer: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
