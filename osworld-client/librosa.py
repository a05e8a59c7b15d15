"""Stands in for a package that OSWorld's client imports and few of its tasks use. See requirements.txt."""


def __getattr__(name: str) -> None:
    raise AttributeError(f"{__name__} is left out of this environment: pip install {__name__}")
