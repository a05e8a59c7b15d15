"""YAML that somebody else may have written: safe types, no key twice, nothing that a few lines make endless."""

import re
from typing import Any

import yaml

from arpo.errors import ConfigError

LARGEST = 2**63  # a number that is no less is none that somebody means


class _Loader(yaml.SafeLoader):
    """YAML's safe types, with a key given twice refused instead of the first value dropped in silence.

    Aliases are refused too, by which a few lines can stand for gigabytes, and numbers that cannot even be printed.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias: Any = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias; write it out", alias.start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if abs(value := super().construct_yaml_int(node)) >= LARGEST:
            raise yaml.constructor.ConstructorError(None, None, "a number beyond all measure", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:  # others: the base refuses them
            if key.value in keys:
                problem = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# YAML 1.1 takes 1e-4 for text, since it has no point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE), [*"-+0123456789"]
)


def parse_yaml(text: str, source: str) -> Any:
    """Its value. ConfigError where it is none, with the place; `source` is where it comes from."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}:{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-99-99
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def one_line(value: object) -> str:
    """Any value on one line, as YAML."""
    odd = isinstance(value, str) and not value.isprintable()  # in double quotes all of it can be escaped
    style = '"' if odd else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, allow_unicode=not odd, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")
