"""The parts whose features a personal head stands on, as words in a card and as modules."""

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from calibre.models.fixed import Components, Nothing, Pixels
from calibre.models.network import Problem, build_encoder
from calibre.models.patches import Patches
from calibre.settings import Settings

Size = Annotated[int, Field(ge=1, le=4096)]


class PartSpec(Settings):
    """What a part is; its tensors are in the bundle's model."""

    kind: Literal["encoder", "patches", "pixels", "components", "nothing"] = "encoder"
    side: Size | None = None  # of the picture that is looked at
    count: Size | None = None  # of components, or of patterns


def spec_of(part: nn.Module) -> PartSpec:
    if isinstance(part, Components):
        return PartSpec(kind="components", side=part.side, count=part.features)
    if isinstance(part, Patches):
        return PartSpec(kind="patches", side=part.side, count=len(part.offset))
    if isinstance(part, Pixels):
        return PartSpec(kind="pixels", side=part.side)
    return PartSpec(kind="nothing" if isinstance(part, Nothing) else "encoder")


def build_part(spec: PartSpec, problem: Problem) -> nn.Module:
    """The module, with whatever tensors it starts with."""
    if spec.kind == "encoder":
        return build_encoder(problem)
    if spec.kind == "nothing":
        return Nothing()
    side = spec.side or problem.size
    if spec.kind == "pixels":
        return Pixels(problem.channels, side)
    fitted = Patches if spec.kind == "patches" else Components
    return fitted(problem.channels, side, spec.count or 1)


def in_words(specs: tuple[PartSpec, ...]) -> str:
    encoders = sum(spec.kind == "encoder" for spec in specs)
    named = ["the encoder"] if encoders == 1 else [f"{encoders} encoders"] if encoders else []
    named += [
        {
            "patches": f"{spec.count} patterns of patches",
            "components": f"{spec.count} principal components of the pixels",
            "pixels": "pixels",
            "nothing": "nothing at all",
        }[spec.kind]
        for spec in specs
        if spec.kind != "encoder"
    ]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
