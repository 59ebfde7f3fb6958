"""The Vision Transformer (Dosovitskiy et al., ICLR 2021, arXiv:2010.11929), as timm builds it.

Parts are called what timm calls them, so that its weights need no translation. Shapes: N images, T
tokens (a class token, then the patches row by row), D numbers each, H heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.errors import UserError

EPSILON = 1e-6  # of layer norm
DEPTH = 12  # blocks
HEAD = 64  # numbers of an attention head
STD = 0.02  # of first weights


class PatchEmbedding(nn.Module):
    """Each patch of an image as a vector."""

    def __init__(self, channels: int, patch: int, D: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, D, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.proj(x), 2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, D: int) -> None:
        super().__init__()
        self.heads = D // HEAD
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        N, T, D = x.shape
        q, k, v = self.qkv(x).reshape(N, T, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)  # [N, H, T, HEAD]
        z: Tensor = self.proj(y.transpose(1, 2).reshape(N, T, D))
        return z


class MLP(nn.Module):
    def __init__(self, D: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(D, 4 * D)
        self.fc2 = nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return y


class TransformerBlock(nn.Module):
    def __init__(self, D: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(D, EPSILON)
        self.attn = Attention(D)
        self.norm2 = nn.LayerNorm(D, EPSILON)
        self.mlp = MLP(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class ViT(nn.Module):
    """Images [N, C, size, size] to features [N, D]: the class token, or the mean of the patches."""

    def __init__(self, D: int, channels: int, size: int, patch: int, pooling: str) -> None:
        super().__init__()
        if size % patch:
            raise UserError(
                f"images of {size} pixels cannot be cut into patches of {patch}: set "
                f"data.size={patch * max(1, round(size / patch))}, or network.patch to a divisor"
            )
        self.size = size
        self.pooling = pooling
        self.features = D
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, D))
        self.patch_embed = PatchEmbedding(channels, patch, D)
        self.blocks = nn.Sequential(*(TransformerBlock(D) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(D, EPSILON)
        nn.init.trunc_normal_(self.pos_embed, std=STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            raise UserError(
                f"a ViT for images of {self.size} x {self.size} pixels was given "
                f"{' x '.join(map(str, x.shape[-2:]))}: set data.size, which makes them square"
            )
        token = self.cls_token.expand(x.shape[0], -1, -1)  # not len(x): ONNX leaves N open
        tokens = torch.cat([token, self.patch_embed(x)], dim=1)
        y: Tensor = self.norm(self.blocks(tokens + self.pos_embed))
        return y[:, 0] if self.pooling == "token" else y[:, 1:].mean(dim=1)


def vit_tiny(channels: int, width: int, stem: str, size: int, patch: int, pooling: str) -> ViT:
    return ViT(192, channels, size, patch, pooling)


def vit_small(channels: int, width: int, stem: str, size: int, patch: int, pooling: str) -> ViT:
    return ViT(384, channels, size, patch, pooling)


def vit_base(channels: int, width: int, stem: str, size: int, patch: int, pooling: str) -> ViT:
    return ViT(768, channels, size, patch, pooling)
