#!/usr/bin/env python3
"""Trains the quickstart's model with several recipes, same data and seeds, and prints the losses side by side.

The loss of a run is the mean over the last tenth of its steps. Recipes see the same batches in the same order, so a gap is taken seed by
seed; its standard error over the seeds says how much of it is chance.
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

JOB = {
    "name": "quickstart",
    "model": {"vocab_size": 256, "hidden": 256, "intermediate": 688, "layers": 4, "heads": 4, "kv_heads": 2},
    "data": {"format": "bytes"},
    "training": {"sequence_length": 256, "micro_batch": 8},
    "optimizer": {"learning_rate": 0.001, "schedule": "cosine", "warmup_steps": 10, "weight_decay": 0.1, "clip_norm": 1.0},
    "metrics": {"quantization_interval_steps": 50},
}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: compare_recipes.py --text build/quickstart/text/kjv.txt --recipes bf16,coat --seeds 3 --steps 300")
    parser.add_argument("--trainer", default="build/release/bin/coat-trainer", help="the program (default: %(default)s)")
    parser.add_argument("--text", default="build/quickstart/text/kjv.txt", help="training text (default: %(default)s, which deploy/quickstart writes)")
    parser.add_argument("--recipes", default="bf16,coat-paper,coat", help="the first is what the others are compared with (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=JOB["optimizer"]["learning_rate"], help="its peak (default: the quickstart's %(default)s)")
    parser.add_argument("--device", default="cpu:0", help="cpu:0 or cuda:N (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of a run; 0: all (default)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    return parser.parse_args()


def train(args, folder, recipe, seed):
    """One run: its mean loss over the last tenth, and its largest loss after the first tenth (a spike stands out there)."""
    job = json.loads(json.dumps(JOB))
    job["recipe"] = recipe
    job["data"]["path"] = os.path.abspath(args.text)
    job["training"].update(steps=args.steps, seed=seed)
    job["optimizer"]["learning_rate"] = args.learning_rate
    base = os.path.join(folder, f"{recipe}-{seed}")
    with open(base + ".json", "w", encoding="utf-8") as spec:
        json.dump(job, spec)
    command = [args.trainer, "--spec", base + ".json", "--device", args.device, "--threads", str(args.threads), "--checkpoint-dir", base + ".checkpoints",
               "--events", base + ".events"]
    started = time.monotonic()
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout[-2000:]}")
    with open(base + ".events", encoding="utf-8") as lines:
        losses = [event["loss"] for event in map(json.loads, lines) if "loss" in event]
    if len(losses) != args.steps:
        sys.exit(f"{base}.events holds {len(losses)} steps, not {args.steps}")
    tenth = max(1, args.steps // 10)
    loss, largest = statistics.fmean(losses[-tenth:]), max(losses[tenth:])
    print(f"  {recipe} seed {seed}: {loss:.4f} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return loss, largest


def print_machine(args):
    version = subprocess.run([args.trainer, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    device = platform.processor() or platform.machine()
    if args.device.startswith("cuda"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        device = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().splitlines()[0]
    print(f"command   {' '.join(sys.argv)}")
    print(f"machine   {device}, {os.cpu_count()} CPU threads")
    print(f"version   {version}")
    print(f"date      {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")
    print(f"run       {args.steps} steps of 2,048 tokens; loss: mean of the last tenth, in nats a token\n")


def print_table(recipes, seeds, results):
    first = recipes[0]
    print("seed".ljust(6) + "".join(name.rjust(12) for name in recipes) + "".join(f"{name} gap".rjust(16) for name in recipes[1:])
          + "   largest loss after the first tenth")
    for seed in seeds:
        losses = [results[name, seed][0] for name in recipes]
        print(f"{seed:<6}" + "".join(f"{loss:12.4f}" for loss in losses) + "".join(f"{loss - losses[0]:16.4f}" for loss in losses[1:])
              + "   " + "  ".join(f"{results[name, seed][1]:.2f}" for name in recipes))
    print("mean  " + "".join(f"{statistics.fmean(results[name, seed][0] for seed in seeds):12.4f}" for name in recipes)
          + "".join(f"{gap_text(results, first, name, seeds):>16}" for name in recipes[1:]))


def gap_text(results, first, name, seeds):
    gaps = [results[name, seed][0] - results[first, seed][0] for seed in seeds]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.fmean(gaps):.4f}+-{error:.4f}"


def main():
    args = options()
    recipes = args.recipes.split(",")
    seeds = range(1, args.seeds + 1)
    if not os.path.exists(args.text):
        sys.exit(f"--text {args.text} does not exist: run deploy/quickstart once, or name another text")
    print_machine(args)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = {(name, seed): pool.submit(train, args, folder, name, seed) for seed in seeds for name in recipes}
        results = {key: run.result() for key, run in runs.items()}
    print_table(recipes, seeds, results)


if __name__ == "__main__":
    main()
