"""What `arpo serve` does: servers, until it is told to end."""

import signal
import sys
import time

from arpo.config import Config
from arpo.engines.vllm.serve import Fleet
from arpo.errors import ConfigError
from arpo.model.checkpoint import find_dtype

LOOK_S = 0.5


def serve_models(config: Config, model: str, replicas: int, host: str, port: int, token: str | None) -> None:
    if token is not None and len(token) < 8:
        raise ConfigError("ARPO_TOKEN: must have at least 8 characters")
    agent, engine = config.agent, config.engine
    dtype = find_dtype(model, agent)
    fleet = Fleet(model, replicas, token, dtype, agent.context, engine.python, host, port, engine.arguments)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    print(f"starting {replicas} of {model} by vLLM: a minute or more", file=sys.stderr)
    with fleet:
        fleet.wait()
        if token is None:
            print(f"export ARPO_TOKEN={fleet.token}")
        print(f"engine.name=vllm engine.servers=[{','.join(fleet.addresses)}]", flush=True)
        while (why := fleet.problem()) is None:
            time.sleep(LOOK_S)
        raise ConfigError(why)
