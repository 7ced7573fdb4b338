"""Where a step of VGG-16 goes: every GPU kernel on every layer it is used on, against PyTorch's own, lane after lane.

    python benchmarks/kernels_gpu.py                      20 lanes of 64 examples, bfloat16

PyTorch's own (cuDNN) computes one lane after another; both are recorded as CUDA graphs, so that launching counts for
neither. TB/s count every pass over the pictures or weights; where the cache serves one, they go beyond the memory's
speed. Writes benchmarks/records/<date>-kernels-gpu.json.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, group_norm

from mppfl.training import VGG_LAYERS
from record import circumstances, write_record

EPS, GROUPS, SIDE = 1e-5, 32, 32  # the models' own, and the height of a picture


@dataclass(frozen=True)
class Layer:
    channels: int
    out: int
    side: int

    def __str__(self) -> str:
        return f"{self.channels} → {self.out}, {self.side} × {self.side}"


@dataclass(frozen=True)
class Timed:
    """One kernel on one layer. gflop, gbytes: what one run computes or moves; the other is 0."""

    kernel: str
    layer: Layer
    ours: Callable[[], object]
    theirs: Callable[[], object] | None
    gflop: float = 0.0
    gbytes: float = 0.0


def layers_of(name: str = "vgg16") -> Counter[Layer]:
    """The convolutions of a model, each with how often it has it."""
    found: Counter[Layer] = Counter()
    channels, side = 3, SIDE
    for step in VGG_LAYERS[name]:
        if isinstance(step, int):
            found[Layer(channels, step, side)] += 1
            channels = step
        else:
            side //= 2
    return found


def kernels(layer: Layer, lanes: int, examples: int) -> Iterator[Timed]:
    """What is timed on one layer, on numbers drawn once."""
    from mppfl.training import cuda

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, device="cuda")).to(torch.bfloat16)

    side, pixels = layer.side, lanes * examples * layer.side**2
    x, y = (drawn(lanes, examples, side, side, channels) for channels in (layer.channels, layer.out))
    taps = drawn(lanes, 3, 3, layer.channels, layer.out, scale=0.05)
    own_x, own_y = ([each.permute(0, 3, 1, 2) for each in pictures] for pictures in (x, y))  # channels last, still
    own_taps = [each.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last) for each in taps]
    gflop = 2e-9 * pixels * 9 * layer.channels * layer.out

    def backward(to_pictures: bool) -> Callable[[], object]:
        which = (to_pictures, not to_pictures, False)
        return lambda: [
            torch.ops.aten.convolution_backward(
                back, of, kernel, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, which
            )
            for back, of, kernel in zip(own_y, own_x, own_taps, strict=True)
        ]  # fmt: skip

    def forward() -> object:
        return [conv2d(of, kernel, padding=1) for of, kernel in zip(own_x, own_taps, strict=True)]

    yield Timed("convolution", layer, lambda: cuda.convolve(x, taps), forward, gflop)
    if layer.channels > 3:  # nothing goes back to the data
        yield Timed("back to pictures", layer, lambda: cuda.convolve(y, taps, turned=True), backward(True), gflop)
    yield Timed(
        "back to taps", layer, lambda: cuda.back_to_taps(x, y, 3, 3), backward(False), gflop
    )  # fmt: skip
    scale, shift = drawn(lanes, layer.out), drawn(lanes, layer.out)
    present = torch.ones((lanes, examples), device="cuda")
    upstream, passed = drawn(*y.shape), 2e-9 * y.numel()  # passes over pictures, in gigabytes
    _, of_channels = cuda.batch_norm_forward(y, scale, shift, present, EPS)
    yield Timed(
        "batch norm, ReLU", layer, lambda: cuda.batch_norm_forward(y, scale, shift, present, EPS),
        lambda: [
            batch_norm(of, None, None, a, b, training=True, eps=EPS).relu_()
            for of, a, b in zip(own_y, scale.float(), shift.float(), strict=True)
        ],
        gbytes=3 * passed,
    )  # fmt: skip
    yield Timed(
        "batch norm, ReLU, back", layer,
        lambda: cuda.batch_norm_backward(upstream, y, scale, shift, present, of_channels), None,
        gbytes=5 * passed,
    )  # fmt: skip
    _, of_groups = cuda.group_norm_forward(y, scale, shift, GROUPS, EPS)
    yield Timed(
        "group norm, ReLU", layer, lambda: cuda.group_norm_forward(y, scale, shift, GROUPS, EPS),
        lambda: [
            group_norm(of, GROUPS, a, b, EPS).relu_() for of, a, b in zip(own_y, scale, shift, strict=True)
        ],
        gbytes=3 * passed,
    )  # fmt: skip
    yield Timed(
        "group norm, ReLU, back", layer,
        lambda: cuda.group_norm_backward(upstream, y, scale, shift, of_groups), None, gbytes=5 * passed,
    )  # fmt: skip
    exact, gradient = taps.float(), torch.zeros_like(taps)
    yield Timed("step", layer, lambda: cuda.descend(exact, taps, gradient, 1e-3), None, gbytes=12e-9 * taps.numel())


def milliseconds(call: Callable[[], object], repeats: int = 10) -> float:
    """Of one run out of a recording; the median of five turns."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    turns = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        turns.append(begin.elapsed_time(end) / repeats)
    return statistics.median(turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=20)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--kernels", default="", help="only those whose name contains this")
    parser.add_argument("--alone", action="store_true", help="without PyTorch's own beside")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    content = circumstances("torch") | {"lanes": chosen.lanes, "examples": chosen.examples, "rows": []}
    in_a_step: Counter[str] = Counter()
    for layer, often in layers_of().items():
        for each in kernels(layer, chosen.lanes, chosen.examples):
            if chosen.kernels not in each.kernel:
                continue
            ours = milliseconds(each.ours)
            theirs = None if each.theirs is None or chosen.alone else milliseconds(each.theirs)
            row = {
                "kernel": each.kernel, "layer": str(each.layer), "times_in_a_step": often, "ms": ours,
                "tflop_per_second": each.gflop / ours or None, "tb_per_second": each.gbytes / ours or None,
                "pytorch_ms": theirs,
            }  # fmt: skip
            content["rows"].append(row)
            in_a_step[each.kernel] += often * ours
            speed = f"{each.gflop / ours:5.0f} TFLOP/s" if each.gflop else f"{each.gbytes / ours:5.2f} TB/s   "
            ratio = f"{theirs / ours:5.1f}x" if theirs else ""
            print(f"{each.kernel:<24} {each.layer!s:<20} {ours:7.4f} ms  {speed}  {ratio}", flush=True)
        write_record("kernels-gpu", content, chosen.output)
    print("\nms in a step: " + ", ".join(f"{kernel} {ms:.2f}" for kernel, ms in in_a_step.items()))


if __name__ == "__main__":
    main()
