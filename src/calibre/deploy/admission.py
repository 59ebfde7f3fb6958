"""Who may take part as what: a site has the name of its key, and nodes are of one kind."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibre.deploy.keys import public_keys

if TYPE_CHECKING:
    from flwr.app.user_config import UserConfig
    from flwr.serverapp import Grid

    from calibre.deploy.records import Hello


Admit = Callable[[int, "Hello"], None]  # raises ValueError where a node may not take part


def of_run(grid: "Grid", config: "UserConfig") -> Admit:
    """The rule of a run, by what it was submitted with."""
    shared = bool(config.get("shared") or config.get("simulation"))
    keys = config.get("keys")  # a simulation has none

    def admit(node: int, hello: "Hello") -> None:
        check(node, hello, shared, registered(grid, Path(str(keys))) if keys else None)

    return admit


def registered(grid: "Grid", keys: Path) -> dict[int, str]:
    """The names of nodes, by Flower's numbers: those of the files with their public keys."""
    names, _ = public_keys(keys)
    nodes = grid.get_nodes()
    return {node.node_id: names[key] for node in nodes if (key := node.public_key) in names}


def check(node: int, hello: "Hello", shared: bool, names: Mapping[int, str] | None) -> None:
    """Raise ValueError where a node may not take part as what it says it is.

    ``shared``: whether this run's clients are shared out among nodes, instead of sites with images
    of their own. ``names``: as :func:`registered` gives them; None where nodes have no keys.
    """
    if hello.share is not None and not shared:
        raise ValueError("it offers to work for a share of the clients, but sites take part here")
    if hello.site is not None and shared:
        raise ValueError(
            f"site '{hello.site.name}' has images of its own, but clients are shared out here"
        )
    if names is None or hello.site is None:
        return
    if (name := names.get(node)) is None:
        raise ValueError(f"it calls itself '{hello.site.name}', and its key has gone")
    if name != hello.site.name:
        raise ValueError(
            f"it calls itself '{hello.site.name}' with the key of '{name}': a site's name is that "
            "of its key"
        )
