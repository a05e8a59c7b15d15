"""A desktop as OSWorld's getters see it: their controller of the machine (OSWorld's client asks, evaluators.py)."""

import base64
from typing import Any

from arpo.envs.desktop.checks.getters import (
    HOME,
    Machine,
    list_directory,
    vm_screen_size,
    vm_terminal_output,
    vm_window_size,
)


def controller(machine: Machine, call: str, arguments: list[Any]) -> Any:
    """What it says to one of its methods, in JSON."""
    match call:
        case "get_file":
            data = machine.read(*arguments)
            return None if data is None else base64.b64encode(data).decode()
        case "execute_python_command":
            ran = machine.run(["python", "-c", *arguments])
            return None if ran is None else {"status": "success", "output": ran.out, "error": ran.err}
        case "get_vm_screen_size":
            return vm_screen_size(machine)
        case "get_vm_window_size":
            return vm_window_size(machine, *arguments)
        case "get_vm_directory_tree":
            return list_directory(machine, *arguments)
        case "get_vm_desktop_path":
            return f"{HOME}/Desktop"
        case "get_terminal_output":
            return vm_terminal_output(machine)
    raise ValueError(f"there is no {call!r:.80}")
