"""What OSWorld's show_result.py finds in a folder of its layout: its rules, for tests."""

from pathlib import Path
from typing import Any


def shown(folder: Path, model: str) -> dict[str, Any] | None:
    """The rules of OSWorld's show_result.py, restated.

    Below result_dir/action_space/observation_type/model every folder is a domain and in it every folder an example. One
    without result.txt is not counted at all. The text is a number, else whether there is any. A rate is the plain mean
    of all examples; None: there are none.
    """
    domains: dict[str, list[float]] = {}
    place = folder / "pyautogui" / "screenshot" / model
    for result in sorted(place.glob("*/*/result.txt")):
        text = result.read_text()
        try:
            score = float(text)
        except ValueError:
            score = float(bool(text))
        domains.setdefault(result.parent.parent.name, []).append(score)
    scores = [score for part in domains.values() for score in part]
    if not scores:
        return None
    rates = {domain: sum(part) / len(part) for domain, part in domains.items()}
    return {"run": len(scores), "success": sum(scores) / len(scores), "domains": rates}
