"""How an extra is installed, for every error that names one.

The distribution is not on the package index, where the name jaxdp belongs to another project.
"""


def install_command(extra: str) -> str:
    return f"pip install -e '.[{extra}]' in a checkout of jaxdp"
