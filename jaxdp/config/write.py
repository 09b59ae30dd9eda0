"""A config as TOML."""

import tomli_w

from jaxdp.config.schema import Config, Section


def to_toml(config: Config) -> str:
    """The config as TOML that `load` reads back to an equal one; a key without a value stays as a comment."""
    values = config.model_dump(exclude_none=True)
    scalars = {key: value for key, value in values.items() if not isinstance(value, dict)}
    parts = [tomli_w.dumps(scalars)]
    for name in type(config).model_fields:
        if isinstance(table := values.get(name), dict):
            parts.append(tomli_w.dumps({name: table}) + _unset(getattr(config, name)))
        elif name not in values:
            parts.append(f"# [{name}]  # {type(config).model_fields[name].description}\n")
    return "\n".join(parts)


def _unset(section: Section) -> str:
    fields = type(section).model_fields.items()
    return "".join(f"# {key} =  # {field.description}\n" for key, field in fields if getattr(section, key) is None)
