"""Run inside a sandbox: what its programs tell assistive technology, as XML in the words of OSWorld's server.

    python3 -I accessibility.py tree WINDOWS          the whole desktop
    python3 -I accessibility.py terminal WINDOWS      the text of the terminal in front

WINDOWS is the list that inside.py gives, as JSON: where Debian's gir1.2-atspi-2.0 is not installed, or for programs
that tell nothing, the windows are all that the tree has.
"""

import json
import sys
from typing import Any
from xml.etree import ElementTree

PLACE = "https://accessibility.ubuntu.example.org/ns/"
SPACES = {"st": "state", "attr": "attributes", "cp": "component", "txt": "text", "val": "value", "act": "action"}
DEEPEST, MOST_CHILDREN = 50, 1024  # tables report a child for every cell that there could be


def _name(space: str, name: str) -> str:
    return f"{{{PLACE}{SPACES[space]}}}{name}"


def _box(element: ElementTree.Element, x: int, y: int, width: int, height: int) -> None:
    element.set(_name("cp", "screencoord"), f"({x}, {y})")
    element.set(_name("cp", "size"), f"({width}, {height})")


def _of_window(window: dict[str, Any]) -> ElementTree.Element:
    program = ElementTree.Element("application", name=window["class"][-1])
    frame = ElementTree.SubElement(program, "frame", name=window["title"])
    _box(frame, *window["box"])
    for state in ("showing", "visible", *(["active"] if window["active"] else [])):
        frame.set(_name("st", state), "true")
    return program


def _of_node(atspi: Any, node: Any, depth: int) -> ElementTree.Element:
    element = ElementTree.Element(node.get_role_name().replace(" ", "-") or "unknown", name=node.get_name() or "")
    for state in node.get_state_set().get_states():
        element.set(_name("st", state.value_nick), "true")
    if (component := node.get_component_iface()) is not None:
        at = component.get_extents(atspi.CoordType.SCREEN)
        _box(element, at.x, at.y, at.width, at.height)
    if (text := node.get_text_iface()) is not None:
        element.text = _clean(atspi.Text.get_text(text, 0, -1))
    if (value := node.get_value_iface()) is not None:
        element.set(_name("val", "value"), str(value.get_current_value()))
    if (action := node.get_action_iface()) is not None:
        for i in range(action.get_n_actions()):
            element.set(_name("act", f"{action.get_action_name(i) or i}_desc".replace(" ", "-")), "")
    if depth < DEEPEST:
        for i in range(min(node.get_child_count(), MOST_CHILDREN)):
            child = node.get_child_at_index(i)
            if child is not None:
                element.append(_of_node(atspi, child, depth + 1))
    return element


def _clean(text: str) -> str:
    return "".join(c for c in text if c >= " " or c in "\t\n")  # XML has no other control characters


def _programs() -> list[ElementTree.Element]:
    """Of those that tell something."""
    try:
        import gi  # type: ignore[import-not-found]

        gi.require_version("Atspi", "2.0")
        from gi.repository import Atspi, GLib  # type: ignore[import-not-found]
    except (ImportError, ValueError):
        return []
    programs = []
    desktop = Atspi.get_desktop(0)
    for i in range(desktop.get_child_count()):
        try:
            programs.append(_of_node(Atspi, desktop.get_child_at_index(i), 0))
        except (GLib.Error, AttributeError):
            continue  # it ended meanwhile
    return programs


def main(what: str, windows: list[dict[str, Any]]) -> str:
    for short, space in SPACES.items():
        ElementTree.register_namespace(short, f"{PLACE}{space}")
    root = ElementTree.Element("desktop-frame", name="main")
    root.extend(_programs())
    if what == "terminal":
        shown = [
            one for frame in root.iter("frame") if frame.get(_name("st", "active")) for one in frame.iter("terminal")
        ]
        return (shown[0].text or "").rstrip() if shown else ""
    told = {frame.get("name") for frame in root.findall("application/*")}
    root.extend(_of_window(window) for window in windows if window["title"] not in told)
    return ElementTree.tostring(root, encoding="unicode")


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], json.loads(sys.argv[2])))
