from typing import NoReturn


def GoogleAuth(*arguments: object, **more: object) -> NoReturn:
    raise ModuleNotFoundError("PyDrive is left out of this environment: pip install PyDrive")
