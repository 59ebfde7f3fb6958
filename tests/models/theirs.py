"""ResNets and ViTs as torchvision and timm publish them: names and shapes of their tensors, written
down from their documentation, and what they compute, in plain calls of torch.nn.functional."""

import math

import torch
import torch.nn.functional as F

CLASSES = 1000


def resnet_layout(blocks, bottleneck):
    """torchvision's and timm's ResNets, classifier and counters included."""
    layout = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    channels = 64
    for stage, count in enumerate(blocks, start=1):
        inner = 64 * 2 ** (stage - 1)
        out = 4 * inner if bottleneck else inner
        for block in range(count):
            at = f"layer{stage}.{block}"
            kernels = [(inner, channels, 1), (inner, inner, 3), (out, inner, 1)]
            if not bottleneck:
                kernels = [(inner, channels, 3), (inner, inner, 3)]
            for i, (after, before, side) in enumerate(kernels, start=1):
                layout[f"{at}.conv{i}.weight"] = (after, before, side, side)
                layout |= norm(f"{at}.bn{i}", after)
            if block == 0 and (stage > 1 or bottleneck):
                layout[f"{at}.downsample.0.weight"] = (out, channels, 1, 1)
                layout |= norm(f"{at}.downsample.1", out)
            channels = out
    return layout | {"fc.weight": (CLASSES, channels), "fc.bias": (CLASSES,)}


def norm(name, channels):
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{part}": (channels,) for part in parts} | {f"{name}.num_batches_tracked": ()}


def resnet(t, blocks, bottleneck, x):
    """Features after average pooling of images under evaluation."""

    def bn(x, at):
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(t[f"{at}.{name}"] for name in names), eps=1e-5)

    x = F.relu(bn(F.conv2d(x, t["conv1.weight"], stride=2, padding=3), "bn1"))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            y = x
            for i, step in enumerate(strides, start=1):
                kernel = t[f"{at}.conv{i}.weight"]
                y = F.conv2d(y, kernel, stride=step, padding=kernel.shape[-1] // 2)
                y = bn(y, f"{at}.bn{i}")
                y = F.relu(y) if i < len(strides) else y
            if f"{at}.downsample.0.weight" in t:
                x = F.conv2d(x, t[f"{at}.downsample.0.weight"], stride=stride)
                x = bn(x, f"{at}.downsample.1")
            x = F.relu(x + y)
    return x.mean(dim=(2, 3))


TIMM = {
    "patch": "patch_embed.proj", "token": "cls_token", "positions": "pos_embed",
    "block": "blocks.{}", "norm1": "norm1", "qkv": "attn.qkv.{}", "out": "attn.proj",
    "norm2": "norm2", "fc1": "mlp.fc1", "fc2": "mlp.fc2", "norm": "norm", "head": "head",
}  # fmt: skip
TORCHVISION = {
    "patch": "conv_proj", "token": "class_token", "positions": "encoder.pos_embedding",
    "block": "encoder.layers.encoder_layer_{}", "norm1": "ln_1", "norm2": "ln_2",
    "qkv": "self_attention.in_proj_{}", "out": "self_attention.out_proj",
    "fc1": "mlp.0", "fc2": "mlp.3", "norm": "encoder.ln", "head": "heads.head",
}  # fmt: skip


def vit_layout(names, D, patch, size, depth=12):
    def both(name, *shape):
        return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}

    tokens = 1 + (size // patch) ** 2
    layout = {
        names["token"]: (1, 1, D),
        names["positions"]: (1, tokens, D),
        **both(names["patch"], D, 3, patch, patch),
        **both(names["norm"], D),
        **both(names["head"], CLASSES, D),
    }
    for i in range(depth):
        at = names["block"].format(i)
        qkv = f"{at}.{names['qkv']}"
        layout |= {qkv.format("weight"): (3 * D, D), qkv.format("bias"): (3 * D,)}
        layout |= both(f"{at}.{names['norm1']}", D) | both(f"{at}.{names['norm2']}", D)
        layout |= both(f"{at}.{names['out']}", D, D)
        layout |= both(f"{at}.{names['fc1']}", 4 * D, D) | both(f"{at}.{names['fc2']}", D, 4 * D)
    return layout


def vit(t, names, x, depth=12):
    """Normed tokens [N, T, D] of images: the class token first."""

    def linear(x, at):
        return x @ t[f"{at}.weight"].T + t[f"{at}.bias"]

    def layer_norm(x, at):
        spread = (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, correction=0, keepdim=True) + 1e-6
        ) ** 0.5
        return spread * t[f"{at}.weight"] + t[f"{at}.bias"]

    def attention(x, at):
        qkv = f"{at}.{names['qkv']}"
        q, k, v = (x @ t[qkv.format("weight")].T + t[qkv.format("bias")]).chunk(3, dim=-1)
        heads = []
        for one in range(0, q.shape[-1], 64):
            part = slice(one, one + 64)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(64)
            heads.append(scores.softmax(-1) @ v[..., part])
        return linear(torch.cat(heads, -1), f"{at}.{names['out']}")

    patch = t[f"{names['patch']}.weight"]
    x = F.conv2d(x, patch, t[f"{names['patch']}.bias"], stride=patch.shape[-1])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([t[names["token"]].expand(len(x), -1, -1), x], 1) + t[names["positions"]]
    for i in range(depth):
        at = names["block"].format(i)
        x = x + attention(layer_norm(x, f"{at}.{names['norm1']}"), at)
        y = linear(layer_norm(x, f"{at}.{names['norm2']}"), f"{at}.{names['fc1']}")
        y = y * (1 + torch.erf(y / math.sqrt(2))) / 2
        x = x + linear(y, f"{at}.{names['fc2']}")
    return layer_norm(x, names["norm"])


def values(layout, seed=0):
    """Tensors for a layout, none of them plain; of a size that keeps activations moderate."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(name, shape):
        if name.endswith("num_batches_tracked"):
            return torch.tensor(3)
        if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
            return torch.rand(shape, generator=generator) + 0.5
        fan = math.prod(shape[1:]) if len(shape) in (2, 4) else 25
        return torch.randn(shape, generator=generator) / math.sqrt(fan)

    return {name: drawn(name, shape) for name, shape in layout.items()}
