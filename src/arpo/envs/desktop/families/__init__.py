"""The families of desktop tasks, one module an application."""

from arpo.envs.desktop.families import calc, calculator, chromium, editor, files, gimp, multi, terminal, vlc, writer
from arpo.envs.desktop.families.base import DesktopFamily, Params

MODULES = (editor, files, calculator, terminal, calc, writer, chromium, gimp, vlc, multi)
FAMILIES: dict[str, DesktopFamily] = {family.name: family for module in MODULES for family in module.FAMILIES}
INSTANCES: dict[str, tuple[DesktopFamily, Params]] = {
    f"{family.name}-{number:03d}": (family, params)
    for family in FAMILIES.values()
    for number, params in enumerate(family.instances)
}
