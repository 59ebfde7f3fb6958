"""How images are normalised for a network that was trained elsewhere."""

from calibre.data.augment import Normalization
from calibre.errors import UserError
from calibre.sections import NetworkSettings


def chosen_normalization(network: NetworkSettings, channels: int) -> Normalization | None:
    """What ``network.normalization`` says for images of so many channels; None: nothing.

    Gray images take the mean over the colours of what was meant for colour: their network's first
    layer is the sum over the colours too.
    """
    chosen = network.normalization
    if chosen is None:
        return None
    if len(chosen.mean) == channels:
        return Normalization(chosen.mean, chosen.std)
    if channels == 1:
        return Normalization((sum(chosen.mean) / 3,), (sum(chosen.std) / 3,))
    raise UserError(
        f"network.normalization has {len(chosen.mean)} mean for images of {channels} channels: "
        "give one for each"
    )
