"""Networks on a GPU: agreement with the CPU, times beside those of PyTorch, and where a GPU pays, as Markdown.

Needs the binary, a GPU with its driver, and the CUDA libraries that the binary is linked to; PyTorch, where it is
installed, is measured on the same GPU. Without `--device cpu` a labelmill that was built without CUDA fails. A case
that takes longer than `--case-seconds` is stopped, cases that are not over after `--seconds` are left out, and the
report names both. Exits with 1 where a model's tables differ or training does not change them, or labelmill fails or
does not finish.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from gpu_agreement import LARGEST_SHARE, LEAST_CHANGE, TABLES, TOLERANCE, agreement
from gpu_runs import Clock, Labelmill
from gpu_times import EPOCHS, around_the_bound, timings

HERE = Path(__file__).resolve().parent
SECONDS, CASE_SECONDS = 570.0, 90.0


def first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    except OSError:
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return lines[0].strip() if lines else ""


def torch_in_f32() -> str:
    """Has PyTorch compute products and convolutions in f32, as labelmill without cuDNN does; returns its version."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return f"PyTorch {torch.__version__} without TF32"


def heading(labelmill: Labelmill, torch: str, device: str, scale: float) -> str:
    """The machine, and the versions of both sides."""
    gpu = first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    on = f"{gpu.replace(', ', ', driver ')}" if gpu else "no GPU found"
    if device == "cpu":
        on = f"the processor on both sides, a trial of this script and no measurement ({platform.machine()})"
    commit = first_line("git", "describe", "--always", "--dirty") or "unknown"
    version = labelmill.call("--version").strip()
    trial = "" if scale == 1 else f" Crowds are scaled by {scale:g}."
    scripts = f"scripts of commit {commit}"
    return f"{version}, {scripts}, {torch}; on {on}, with {os.cpu_count()} processors.{trial}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="labelmill, built with --features cuda")
    parser.add_argument("--device", default="cuda", help='"cpu" tries this script without a GPU (default: cuda)')
    data = os.environ.get("LABELMILL_DATA")
    parser.add_argument(
        "--data", type=Path, default=data and Path(data),
        help="the datasets, for LeNet on MNIST (default: $LABELMILL_DATA; without, its images are generated)",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every crowd, for a trial")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"default: {TOLERANCE:g}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for everything; default: {SECONDS:g}")
    parser.add_argument("--case-seconds", type=float, default=CASE_SECONDS, help=f"default: {CASE_SECONDS:g}")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parts = ("agreement", "times", "bound")
    parser.add_argument("--only", choices=parts, action="append", help="one part of the report; may be repeated")
    options = parser.parse_args()
    if not options.binary.is_file():
        parser.error(f"no labelmill at {options.binary}")
    mnist = options.data / "mnist" if options.data else None
    if mnist and not mnist.is_dir():
        parser.error(f"no folder {mnist}")
    torch = not options.no_torch and find_spec("torch") is not None
    clock = Clock(options.seconds, options.case_seconds)
    with tempfile.TemporaryDirectory() as folder:
        labelmill = Labelmill(options.binary.resolve(), Path(folder))
        peer = torch_in_f32() if torch else "no PyTorch"
        versions = heading(labelmill, peer, options.device, options.scale)
        print(f"# Networks on a GPU\n\n{versions}\n")
        only, agree, complete = options.only or parts, True, True
        if "agreement" in only:
            near, agree = agreement(labelmill, options.device, mnist, options.scale, options.tolerance, clock)
            print("The largest difference of a probability from that of the processor, after one epoch; at most")
            print(f"{options.tolerance:g} is wanted. The last number is the largest change of a prediction by training: at least")
            print(f"{LEAST_CHANGE:g}, and in f32 so large that the difference of predictions is {LARGEST_SHARE:.0%} of it at most:\n")
            print(f"| model | {' | '.join(TABLES)} | change | agrees |\n| --- |{' --- |' * (len(TABLES) + 2)}")
            print("\n".join(near), end="\n\n", flush=True)
        if "times" in only:
            lines, complete = timings(labelmill, options.device, mnist, options.scale, torch, clock)
            print(f"The median epoch of {EPOCHS - 1} after the first; of CoNAL, PyTorch computes the dense form:\n")
            print("| network | batch | labelmill | PyTorch | ratio |\n| --- | --- | --- | --- | --- |")
            print("\n".join(lines), end="\n\n", flush=True)
        if "bound" in only:
            lines = around_the_bound(labelmill, options.device, options.scale, clock)
            print("The time of a step; millions of multiply-adds are those of its forward pass:\n")
            print("| network | batch | multiply-adds | processor | GPU | ratio |\n| --- | --- | --- | --- | --- | --- |")
            print("\n".join(lines), end="\n\n")
    if clock.left_out:
        print(f"Left out: {'; '.join(clock.left_out)}.\n")
    print(f"This report took {clock.elapsed():.0f} s.")
    return 0 if agree and complete else 1


if __name__ == "__main__":
    sys.exit(main())
