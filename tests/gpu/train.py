"""Trains a small model on random data and reports its steps to Wattle.

Needs PyTorch. A model's name is `<family>-b<batch>[-<variant>]`:

    python3 train.py --model resnet18-b128

Families: mlp, cnn, resnet18, transformer. Variants:

    accumulated   a step is eight micro-batches, each an eighth of the batch
    fed           each step waits 50 ms for its data, like a slow input pipeline

It trains until SIGTERM or SIGUSR1, or until --steps are completed.
"""

import argparse
import os
import re
import signal
import socket
import sys
import time

MICRO = 8
WAIT_S = 0.05
REPORT_EVERY_S = 0.5


def parse(name):
    found = re.fullmatch(r"(mlp|cnn|resnet18|transformer)-b(\d+)(?:-(accumulated|fed))?", name)
    if not found:
        sys.exit(f"error: invalid --model {name}: expected family-b<batch>[-variant]; "
                 "families are mlp, cnn, resnet18, transformer; variants accumulated, fed")
    family, batch, variant = found.group(1), int(found.group(2)), found.group(3)
    micro = MICRO if variant == "accumulated" else 1
    if batch < micro:
        sys.exit(f"error: --model {name}: a batch of {batch} cannot be split into {micro} micro-batches")
    return family, batch, micro, WAIT_S if variant == "fed" else 0.0


def build(family, size, torch):
    """Returns the model and a batch of `size` samples with labels."""
    nn = torch.nn
    if family == "mlp":
        layers = [nn.Linear(1024, 2048), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Linear(2048, 2048), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(2048, 100))
        return model, torch.randn(size, 1024), torch.randint(0, 100, (size,))
    if family == "transformer":
        return transformer(size, torch)
    images, labels = torch.randn(size, 3, 32, 32), torch.randint(0, 100, (size,))
    if family == "cnn":
        def block(a, b):
            return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        body = block(3, 64) + block(64, 128) + block(128, 256)
        model = nn.Sequential(*body, nn.Flatten(), nn.Linear(256 * 16, 100))
        return model, images, labels
    return residual(torch), images, labels


def transformer(size, torch):
    """Six layers over 128 tokens from a vocabulary of 1000, with a classification per token."""
    nn = torch.nn

    class TokenModel(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 6)
            self.words, self.out = nn.Embedding(1000, 512), nn.Linear(512, 1000)

        def forward(self, tokens):
            return self.out(self.body(self.words(tokens))).flatten(0, 1)

    tokens = torch.randint(0, 1000, (size, 128))
    return TokenModel(), tokens, tokens.flatten()


def residual(torch):
    """Eighteen layers in four stages of two residual blocks (He et al., 2016), for 32x32 images."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.one = nn.Conv2d(a, b, 3, stride, 1, bias=False)
            self.two = nn.Conv2d(b, b, 3, 1, 1, bias=False)
            self.norm_one, self.norm_two = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
            self.shortcut = None
            if stride != 1 or a != b:
                self.shortcut = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

        def forward(self, x):
            y = torch.relu(self.norm_one(self.one(x)))
            y = self.norm_two(self.two(y))
            return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    stages, width = [], 64
    for depth, wider in enumerate((64, 128, 256, 512)):
        stages += [Block(width, wider, 1 if depth == 0 else 2), Block(wider, wider, 1)]
        width = wider
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return nn.Sequential(*stem, *stages, *head)


class Reporter:
    """Reports progress, one datagram per report; a missing receiver does not stop training."""

    def __init__(self, batch):
        self.path, self.job = os.environ.get("WATTLE_PROGRESS"), os.environ.get("WATTLE_JOB")
        self.batch, self.at = batch, time.monotonic()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def due(self):
        return time.monotonic() - self.at >= REPORT_EVERY_S

    def report(self, step):
        self.at = time.monotonic()
        if not (self.path and self.job):
            return
        line = f"job={self.job} step={step} global_batch={self.batch}"
        try:
            self.socket.sendto(line.encode(), self.path)
        except OSError:
            pass


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--steps", type=int, default=None)
    arguments.add_argument("--device", default="cuda")
    options = arguments.parse_args()
    family, batch, micro, wait = parse(options.model)
    try:
        import torch
    except ImportError:
        sys.exit("error: PyTorch is not installed for this Python")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU; use --device cpu to train without one")

    stop_signals = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: stop_signals.append(number))

    torch.manual_seed(1)
    model, inputs, labels = build(family, batch // micro, torch)
    model, inputs, labels = (part.to(options.device) for part in (model, inputs, labels))
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    reporter = Reporter(batch // micro * micro)
    step = 0
    while not stop_signals and (options.steps is None or step < options.steps):
        if wait:
            time.sleep(wait)
        for _ in range(micro):
            (loss_of(model(inputs), labels) / micro).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if reporter.due():
            if options.device == "cuda":
                # Queued kernels do not count as completed steps.
                torch.cuda.synchronize()
            reporter.report(step)
    print(f"{options.model}: {step} steps", flush=True)


if __name__ == "__main__":
    main()
