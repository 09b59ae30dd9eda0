"""A notebook as a script: bench three strategies, simulate them under a straggler, and draw both.

    python examples/compare.py comparison.png

The lines `# %%` make cells of it in an editor that knows them.
"""

# %% What to compare: one small model under three strategies; everything else is the same
import sys
from pathlib import Path

from matplotlib.figure import Figure

import jaxdp

STRATEGIES = ("ddp", "fsdp", "ps")
SLOW_WORKER = "lognormal(sigma=0.1),persistent(worker=0,factor=4)"
configs = [jaxdp.load("nano", [f"strategy.name={name}", "train.global_batch=8"]) for name in STRATEGIES]

# %% Measure them on this machine; on a CPU memory and losses are exact, while throughput is not a cluster's
results = jaxdp.bench(configs, devices=4, steps=5, warm_up=1)
for result in results:
    mib = result.memory.state_bytes_per_device / 2**20
    print(f"{result.strategy}: {mib:.2f} MiB per device, loss {result.loss['last']:.3f}")

# %% Simulate them with one worker four times slower than the rest
simulation = jaxdp.simulate(workers=8, steps=300, compute_s=0.4, stragglers=SLOW_WORKER, strategies=STRATEGIES)
gains = {row["strategy"]: row["gain_over_ddp"] for row in simulation.to_json()["results"]}

# %% Ask what to take on a cluster that is not here
advice = jaxdp.advise(jaxdp.load("gpt2-xl"), "h100x8", hosts=4)
print(f"gpt2-xl on four hosts of 8 H100: {advice.recommendation}: {advice.reason}")

# %% Draw what each strategy keeps on a device, and what it makes of uneven workers
figure = Figure(figsize=(9, 3.5), layout="constrained")
memory, throughput = figure.subplots(1, 2)
bottom = [0.0] * len(results)
for part in ("parameter", "gradient", "optimizer"):
    mib = [getattr(result.memory, f"{part}_bytes_per_device") / 2**20 for result in results]
    memory.bar(STRATEGIES, mib, bottom=bottom, label=part)
    bottom = [low + high for low, high in zip(bottom, mib, strict=True)]
memory.set(title="State (measured)", ylabel="MiB per device")
memory.legend()
throughput.bar(STRATEGIES, [gains[name] for name in STRATEGIES], color="tab:gray")
throughput.set(title="One worker 4 times slower (simulated)", ylabel="gradients/s, relative to DDP")

# %% Keep the figure
path = Path(sys.argv[1] if len(sys.argv) > 1 else "comparison.png")
figure.savefig(path, dpi=120)
print(f"figure: {path}")
