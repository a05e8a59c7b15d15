"""The applications, in the order of the launcher."""

from arpo.envs.pocket.apps.browser import Browser
from arpo.envs.pocket.apps.calculator import Calculator
from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.apps.files import FileManager
from arpo.envs.pocket.apps.mail import Mail
from arpo.envs.pocket.apps.settings import Settings
from arpo.envs.pocket.apps.sheet import Sheet
from arpo.envs.pocket.desktop import App

APPS: dict[str, type[App]] = {
    app.name: app for app in (FileManager, Editor, Mail, Browser, Sheet, Calculator, Settings)
}
