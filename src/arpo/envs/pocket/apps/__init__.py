"""The applications, in the order of the launcher."""

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.desktop import App

APPS: dict[str, type[App]] = {app.name: app for app in (Editor,)}
