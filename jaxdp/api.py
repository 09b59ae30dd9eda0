"""What each command does, as functions of Python: `import jaxdp` offers them, and the command line calls them.

Frozen results with `to_json()`, which is the document that `--json` prints. A mistake raises `BadInput`, a check that
refuses `Refused`, before any work. JAX is imported only by what needs devices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.job.processes import Job, gather, host_name
from jaxdp.job.stop import StopFlag
from jaxdp.predict import checks
from jaxdp.predict.calibrated.rates import OWN_STACK
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.preflight import Report, check_allowed, preflight

if TYPE_CHECKING:
    from jaxdp.predict.advise import Advice
    from jaxdp.records import BenchResult
    from jaxdp.run.train import Resume, TrainSummary

STEPS, RACE_STEPS = 20, 500  # of a bench, and at most of a race to a loss

Observer = Callable[[str, int, str], None]  # the strategy, the steps just done, a remark for people


def silent(strategy: str, steps: int, note: str) -> None:
    """An observer that looks away."""


def bench(
    configs: Config | Sequence[Config],
    *,
    devices: int | None = None,
    steps: int | None = None,
    warm_up: int = 3,
    until_loss: float | None = None,
    profile: bool = False,
    trace: bool = False,
    attribute_stragglers: bool = False,
    allow: Iterable[str] = (),
    run_dir: str | None = None,
    overwrite: bool = False,
    xla_flags: bool = True,
    observe: Observer = silent,
    job: Job | None = None,
) -> "list[BenchResult]":
    """Measures the configs, which differ in their strategy only, in turns on the same batches.

    `steps` are timed after `warm_up` (default 20; with `until_loss` at most 500). Records go to `run_dir`, by default
    a new folder under runs/. Raises `BadInput`, `Refused`, and `JaxdpError` at a loss that is not finite.
    """
    job = job or Job()
    configs = [configs] if isinstance(configs, Config) else configs
    if attribute_stragglers and job.processes == 1:
        raise BadInput("--attribute-stragglers: there is one process; jaxdp launch -n N starts several")
    from jaxdp.run.prepare import prepare

    steps = steps or bench_steps(until_loss)
    options = {"--steps": steps, "--warmup": warm_up, "--until-loss": until_loss, "--trace": trace}
    options |= {"--profile": profile, "--attribute-stragglers": attribute_stragglers}
    prepared = prepare(
        configs,
        devices,
        name="bench",
        allow=allow,
        run_dir=run_dir,
        overwrite=overwrite,
        xla_flags=xla_flags,
        job=job,
        options=options,
    )
    from jaxdp.run.bench import bench as measure

    with prepared.folder:
        return measure(
            prepared,
            steps=steps,
            warm_up=warm_up,
            until_loss=until_loss,
            profile=profile,
            trace=trace,
            attribute=attribute_stragglers,
            observe=observe,
        )


def bench_steps(until_loss: float | None) -> int:
    """The timed steps of a bench that names no number."""
    return STEPS if until_loss is None else RACE_STEPS


def train(
    config: Config,
    *,
    devices: int | None = None,
    steps: int | None = None,
    resume: "Resume | str" = "never",
    save_every: int = 0,
    eval_every: int = 0,
    allow: Iterable[str] = (),
    run_dir: str | None = None,
    overwrite: bool = False,
    xla_flags: bool = True,
    observe: Observer = silent,
    stop: StopFlag | None = None,
    job: Job | None = None,
) -> "TrainSummary":
    """Trains up to step `steps` (default: the schedule's length, `config.train.steps`) and saves the last step.

    `resume` is "never", "auto" (the newest checkpoint in `run_dir`) or a step. A `StopFlag` that is entered around
    the call ends it early, saved. Raises as `bench` does.
    """
    wanted = _parse_resume(resume, run_dir)
    from jaxdp.run.prepare import prepare

    prepared = prepare(
        [config],
        devices,
        name="train",
        allow=allow,
        run_dir=run_dir,
        overwrite=overwrite,
        resume=wanted != "never",
        xla_flags=xla_flags,
        job=job,
        options={"--steps": steps, "--resume": wanted, "--save-every": save_every, "--eval-every": eval_every},
    )
    from jaxdp.run.train import train as run

    name = config.strategy.name
    with prepared.folder:
        return run(
            prepared,
            steps=steps,
            resume=wanted,
            save_every=save_every,
            eval_every=eval_every,
            observe=lambda done, note: observe(name, done, note),
            stop=StopFlag() if stop is None else stop,  # a flag that is not raised is false
        )


def _parse_resume(resume: int | str, run_dir: str | None) -> "Resume":
    if resume != "never" and run_dir is None:
        raise BadInput(f"--resume {resume}: needs --run-dir, the folder of the run to continue")
    if resume == "auto" or resume == "never":
        return resume
    if not str(resume).isdecimal():
        raise BadInput(f"--resume {resume}: expected auto, never or a step's number")
    return int(resume)


def check(
    config: Config,
    devices: int = 4,
    *,
    hosts: int | None = None,
    hardware: str | Hardware | None = None,
    compile: bool = False,
    topology: str | None = None,
    allow: Iterable[str] = (),
    job: Job | None = None,
) -> Report:
    """What will go wrong with the config on so many devices: shards, batch, memory and, compiled, its collectives.

    `hardware` (a preset or file) says whose memory to check against; `topology` compiles for devices that are not
    here. Raises `BadInput`; what is unsafe is a report that is not `ok`, where errors named in `allow` pass.
    """
    allowed, compile = check_allowed(allow), compile or topology is not None
    job = job or Job()
    if compile and not job.joined:
        job.join()
    host_names = gather(host_name())
    hosts = hosts or len(set(host_names))
    machine = load_hardware(hardware) if isinstance(hardware, str) else hardware
    usable_bytes = machine.usable_bytes if machine else None
    platform = machine.groups[0].platform if machine else None
    report = preflight(config, devices, hosts, usable_bytes, platform=platform)
    report = replace(report, findings=(*report.findings, *checks.data(config)), allowed=allowed)
    if compile and report.runs and report.ok:
        from jaxdp.predict.compiled import compiled_check

        report = compiled_check(config, report, hosts, topology, usable_bytes, host_names=host_names)
    return report


def advise(
    config: Config,
    hardware: str | Hardware,
    *,
    hosts: int | None = None,
    nic_gbps: float | None = None,
    stack: str = OWN_STACK,
    origin: Sequence[str] = (),
) -> "Advice":
    """Predicts every strategy on the hardware (a preset, a file, or as loaded), and recommends one.

    `hosts` and `nic_gbps` (per device) stand in for the hardware's; the config's `stragglers` say how workers differ.
    `stack` is who trains, jaxdp or another; `origin` are the words that made the config (`--config nano`), for
    the command line that the advice ends in.
    """
    from jaxdp.predict.advise import advise as predict

    machine = load_hardware(hardware, hosts, nic_gbps, stack) if isinstance(hardware, str) else hardware
    delays = None
    if config.stragglers:
        from jaxdp.stragglers.delays import parse

        delays = parse(config.stragglers, config.train.seed, "stragglers")
    return predict(config, machine, delays, origin)
