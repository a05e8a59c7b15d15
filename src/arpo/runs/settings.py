"""Whether a begun run is gone on with as what it is."""

from arpo.config import Config, load_config, to_yaml
from arpo.errors import ConfigError
from arpo.runs.store import Run


def same_settings(run: Run, config: Config) -> None:
    """ConfigError where it was begun with other settings.

    Free are its folder, the device, where and how many episodes run, and where metrics go.
    """
    begun = load_config(str(run.folder / "config.yaml"), [])
    begun = begun.model_copy(
        update={
            "env": config.env.model_copy(update={"name": begun.env.name, "size": begun.env.size}),
            "agent": begun.agent.model_copy(update={"device": config.agent.device}),
            "eval": begun.eval.model_copy(update={"n_envs": config.eval.n_envs}),
            "train": begun.train.model_copy(update={"n_envs": config.train.n_envs, "track": config.train.track}),
            "run_dir": config.run_dir,
        }
    )
    if begun != config:
        old, new = (to_yaml(settings).splitlines() for settings in (begun, config))
        before, now = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
        before, now = (line.partition("  #")[0].strip() for line in (before, now))
        raise ConfigError(f"{run.folder}: was begun with {before}, not {now}; choose another folder")
