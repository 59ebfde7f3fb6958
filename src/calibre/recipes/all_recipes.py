"""The recipes by name."""

import importlib
from typing import cast, get_args

from calibre.errors import UserError
from calibre.recipes.recipe import Recipe
from calibre.recipes.scales import Scale
from calibre.settings import nearest

MODULES = (
    "figures34", "table1", "embeddings", "learning_rates", "digits_demo", "campaign",
    "label_budget", "equal_images", "unseen_classes", "calibration_forms",
)  # fmt: skip


def recipes() -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    for module in MODULES:
        for recipe in importlib.import_module(f"calibre.recipes.{module}").RECIPES:
            found[recipe.name] = recipe
    return found


def find(name: str) -> Recipe:
    known = recipes()
    if name not in known:
        raise UserError(f"there is no recipe called '{name}': {nearest(name, known)}")
    return known[name]


def scale(name: str) -> Scale:
    if name not in get_args(Scale):
        raise UserError(f"--scale {name}: known: {', '.join(get_args(Scale))}")
    return cast(Scale, name)
