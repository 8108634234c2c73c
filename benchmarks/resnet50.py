"""A network with the layers, and so the buffers, of a ResNet-50."""

from __future__ import annotations

from torch import Tensor, nn

# Blocks and inner width of the four stages.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *_layer(width_in, width, 1),
            nn.ReLU(inplace=True),
            *_layer(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_layer(width, out, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if width_in != out:
            self.shortcut = nn.Sequential(*_layer(width_in, out, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Add both ways."""
        return (self.body(x) + self.shortcut(x)).relu()


class ResNet50(nn.Sequential):
    """25.6 million parameters, 53 times BatchNorm."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        width_in = 64
        for number, (count, width) in enumerate(STAGES):
            for index in range(count):
                stride = 2 if index == 0 and number > 0 else 1
                blocks.append(Bottleneck(width_in, width, stride))
                width_in = 4 * width
        super().__init__(
            *_layer(3, 64, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width_in, 1000),
        )


def _layer(
    width_in: int, width: int, size: int, stride: int = 1
) -> list[nn.Module]:
    return [
        nn.Conv2d(width_in, width, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(width),
    ]
