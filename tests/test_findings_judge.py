"""Verdicts follow from the evidence: altered numbers turn each of them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from sims.findings import f1_memory, f2_crossover, f3_fastest, f4_uneven, f5_boundaries, f6_choice, region
from sims.findings.claims import LOSS, judge_asynchronous
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Finding, Value, listed
from sims.findings.region import Map, Regions


def value(finding: Finding, name: str) -> Any:
    return next(each.found for each in finding.values if each.name == name)


# F1: (devices, tokens a device, times fewer live bytes, times a lower peak)
def memory(*cases: tuple[int, int, float, float]) -> f1_memory.Evidence:
    held = []
    for devices, tokens, live, peak in cases:
        held.append(f1_memory.Held("ddp", devices, tokens, round(1000 * live), round(2000 * peak)))
        held.append(f1_memory.Held("fsdp", devices, tokens, 1000, 2000))
    return f1_memory.Evidence(tuple(held), ())


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([(2, 64, 2.0, 1.9), (8, 64, 8.0, 4.5), (8, 512, 8.0, 1.6)], HOLDS),
        ([(8, 64, 8.0, 4.5), (8, 512, 8.0, 1.4)], CONDITIONAL),
        ([(8, 64, 8.0, 1.4), (8, 512, 8.0, 1.1)], FAILS),
        ([(8, 64, 1.0, 4.5)], FAILS),  # a state that lies whole on every device
    ],
)
def test_f1_turns_on_state_and_peak(cases, verdict):
    assert f1_memory.judge(memory(*cases)).verdict == verdict


def test_f1_names_where_it_does_not_hold_and_where_the_papers_ratio_is_met():
    finding = f1_memory.judge(memory((4, 64, 4.0, 3.0), (8, 64, 8.0, 5.0), (8, 512, 8.0, 1.2)))
    assert "8 devices with 512 tokens" in finding.condition
    assert finding.reason.endswith("4 to 6 times at: 8 devices, 64 tokens a device")
    assert value(finding, "live_ratio.8_devices") == 8.0


# F2: DDP's tokens/s over FSDP's, by size, for each bandwidth
def crossing(leads: dict[float, list[float]], volume: float = 1.5, fits: int = 10**12) -> f2_crossover.Evidence:
    speeds = [
        f2_crossover.Speed("4 x h100x8", nic, 10 ** (6 + place), 100 * lead, 100 * lead, 100, 10**place < fits, True)
        for nic, row in leads.items()
        for place, lead in enumerate(row)
    ]
    volumes = (f2_crossover.Volume("ddp", 1000, 1000), f2_crossover.Volume("fsdp", round(1000 * volume), 1500))
    return f2_crossover.Evidence(volumes, 1.0, tuple(speeds), 1.3, True)


@pytest.mark.parametrize(
    ("leads", "verdict"),
    [
        ({10: [2.5, 1.2, 0.9], 100: [3.0, 0.9, 0.8]}, HOLDS),
        ({10: [0.9, 0.8, 0.7], 100: [3.0, 0.9, 0.8]}, CONDITIONAL),
        ({10: [0.9, 0.8, 0.7], 100: [0.9, 0.9, 0.8]}, FAILS),  # FSDP never slower
        ({10: [1.5, 1.4, 1.3]}, FAILS),  # never faster
    ],
)
def test_f2_needs_a_crossover(leads, verdict):
    assert f2_crossover.judge(crossing(leads)).verdict == verdict


def test_f2_counts_a_ddp_that_no_longer_fits_as_crossed():
    finding = f2_crossover.judge(crossing({10: [1.5, 1.4, 1.3]}, fits=100))
    assert finding.verdict == HOLDS
    assert value(finding, "crossover_parameters.4 x h100x8.10_gbps") == 10**8


@pytest.mark.parametrize("volume", [1.0, 1.2, 2.0])
def test_f2_fails_if_fsdp_does_not_send_what_its_formula_says(volume):
    assert f2_crossover.judge(crossing({10: [2.5, 1.2, 0.9]}, volume)).verdict == FAILS


def test_f2_says_that_shared_cores_are_no_evidence():
    evidence = crossing({10: [2.5, 0.9]})
    assert "no evidence" in f2_crossover.judge(evidence).reason
    assert "no evidence" not in f2_crossover.judge(replace(evidence, on_host=False)).reason


# F3: (overlapped over built, fastest over built)
def fastest(*cells: tuple[float, float]) -> f3_fastest.Evidence:
    made = tuple(
        f3_fastest.ClusterResult("tiny", f"{place} x h100", *cell[:1], "fsdp", cell[1])
        for place, cell in enumerate(cells)
    )
    return f3_fastest.Evidence(made, (), True)


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([(1.0, 1.0), (1.2, 1.09)], HOLDS),
        ([(1.0, 1.0), (1.0, 1.5)], CONDITIONAL),
        ([(1.4, 1.5)], CONDITIONAL),  # with overlap only
        ([(1.0, 1.5), (1.2, 2.0)], FAILS),
        ([], UNTESTABLE),
    ],
)
def test_f3_turns_on_the_leads(cells, verdict):
    assert f3_fastest.judge(fastest(*cells)).verdict == verdict


# F4
def races(tokens: float, to_loss: float | None, even: float | None = 1.0, backup: float = 0.75) -> f4_uneven.Evidence:
    found = []
    for uneven, gain in ((True, tokens), (False, even)):
        if gain is not None:
            found.append(f4_uneven.Race("ddp", uneven, 0, 100.0, 10.0, 20, 0.0))
            seconds = None if to_loss is None else 10.0 / to_loss
            found.append(f4_uneven.Race("ps", uneven, 0, 100.0 * gain, seconds, 30, 3.0))
    rates = {"ddp": 0.25, "ps-async": 0.81, "backup(1)": backup}
    simulated = tuple(f4_uneven.Simulated(name, f4_uneven.FACTOR, rate) for name, rate in rates.items())
    return f4_uneven.Evidence(2.9, tuple(found), simulated)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (races(3.2, 2.0), HOLDS),
        (races(3.2, 2.0, even=None), HOLDS),
        (races(3.2, 0.9), CONDITIONAL),  # more tokens a second, but later at the loss
        (races(3.2, None), CONDITIONAL),
        (races(1.0, 2.0), FAILS),
        (races(3.2, 2.0, backup=1.0), FAILS),  # another way holds up better
    ],
)
def test_f4_turns_on_rates_and_on_time_to_loss(evidence, verdict):
    assert f4_uneven.judge(evidence).verdict == verdict


def test_f4_expects_the_closed_form():
    """(s(n-1)+1)/n for one worker s times slower."""
    finding = f4_uneven.judge(races(3.2, 2.0))
    assert [v.expected for v in finding.values if v.name == "gain_in_tokens_per_second.uneven"] == [13 / 4]


# F5: (devices, flagged, rounds, seconds a step)
GOOD = [(3, False, 20, 0.4), (4, True, 26, 0.52), (5, True, 32, 0.64), (6, False, 20, 0.41)]


def boundaries(
    rows: list[tuple[int, bool, int, float]],
    aligned: dict[int, int] | None = None,
    aligned_s: dict[int, float] | None = None,
) -> Any:
    made = [
        f5_boundaries.Row(n, flagged, False, rounds, (aligned or {}).get(n, 100), s, (aligned_s or {}).get(n, 1.0))
        for n, flagged, rounds, s in rows
    ]
    predicted = [f5_boundaries.Predicted(14e-6, n, s) for n, _, _, s in rows]
    return f5_boundaries.Evidence(0.02, tuple(made), tuple(predicted))


def test_f5_holds_where_a_round_costs_time():
    finding = f5_boundaries.judge(boundaries(GOOD))
    assert finding.verdict == CONDITIONAL
    assert value(finding, "counts_with_a_dip") == "4 and 5"
    assert value(finding, "efficiency.5_devices") == pytest.approx(0.4 / 0.64)
    assert value(finding, "won_back_at_14_us") == pytest.approx(0.64 / 0.41)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({5: (5, False, 32, 0.64)}, "compiled step has more rounds at 4 and 5"),  # the check misses one
        ({3: (3, True, 20, 0.4)}, "compiled step has more rounds"),  # the check cries wolf
        ({5: (5, True, 20, 0.64)}, "compiled step has more rounds at 4"),  # rounds were merged
        ({5: (5, True, 32, 0.41)}, "efficiency falls at 4"),  # the extra round costs nothing
        ({6: (6, False, 20, 0.64)}, "efficiency falls at 4, 5 and 6"),  # no recovery
        ({6: (6, True, 32, 0.64)}, "nothing falls and comes back"),
    ],
)
def test_f5_fails_when_check_program_and_time_disagree(change, told):
    rows = [change.get(row[0], row) for row in GOOD]
    finding = f5_boundaries.judge(boundaries(rows))
    assert finding.verdict == FAILS and told in finding.reason


def test_f5_fails_if_aligned_shards_pay_too():
    assert f5_boundaries.judge(boundaries(GOOD, aligned={5: 130})).verdict == FAILS
    finding = f5_boundaries.judge(boundaries(GOOD, aligned_s={4: 1.3, 5: 1.4}))
    assert finding.verdict == FAILS
    assert value(finding, "counts_with_a_dip_if_aligned") == "4 and 5"


# F6: tokens/s that the rule's choice keeps, for each bottleneck
def choices(fits: list[float], not_fits: list[float], uneven: list[float]) -> f6_choice.Evidence:
    kept: dict[f6_choice.Bottleneck, list[float]] = {"fits": fits, "does not fit": not_fits, "uneven": uneven}
    return f6_choice.Evidence(
        tuple(
            f6_choice.ClusterChoice("tiny", "1 x h100", 4 if name == "uneven" else 1, name, "ddp", share, 2.0)
            for name, shares in kept.items()
            for share in shares
        )
    )


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (choices([1.0, 0.95], [1.0], [1.0]), HOLDS),
        (choices([1.0, 0.6], [1.0], [1.0, 0.1]), CONDITIONAL),
        (choices([1.0], [1.0], [0.5, 0.0]), FAILS),  # never the server
        (choices([1.0], [], [1.0]), UNTESTABLE),
    ],
)
def test_f6_turns_on_what_the_rule_keeps(evidence, verdict):
    assert f6_choice.judge(evidence).verdict == verdict


# The paper's claims: a map whose cells lie inside or outside 2 to 3
def regions(*rows: tuple[float, ...]) -> Regions:
    columns, labels = tuple("abcd"[: len(rows[0])]), tuple(str(place) for place in range(len(rows)))
    return Regions((Map("a map", "size", "Gb/s", columns, labels, rows, 2, 3, "predicted"),))


@pytest.mark.parametrize(
    ("rows", "verdict", "words"),
    [
        ([(2.0, 2.5), (3.0, 2.2)], HOLDS, "Gb/s 0: a to b; 1: a to b (size)"),
        ([(2.5, 1.0, 2.5, 2.6), (1.0, 1.0, 1.0, 1.0)], CONDITIONAL, "Gb/s 0: a, c to d (size)"),
        ([(4.0, 1.0)], FAILS, "nowhere"),
        ([(math.nan, 2.5)], CONDITIONAL, "Gb/s 0: b (size)"),
    ],
)
def test_a_claim_holds_within_its_region(rows, verdict, words):
    finding = region.judge("P1", "a claim", "a condition", regions(*rows))
    assert finding.verdict == verdict
    assert finding.condition.endswith(words)


@pytest.mark.parametrize(("loss", "verdict"), [(2.9, CONDITIONAL), (2.5, FAILS), (None, CONDITIONAL)])
def test_p3_needs_an_accuracy_loss_too(loss, verdict):
    losses = () if loss is None else (("ddp", 2.6), ("ps-async", loss))
    values = tuple(Value(LOSS + label, None, found, "simulated") for label, found in losses)
    found = judge_asynchronous(Finding("P3", "a claim", "a condition", CONDITIONAL, "because", values))
    assert found.verdict == verdict
    assert ("not tested" in found.reason) == (loss is None)


def test_values_are_listed_in_words():
    assert [listed(values) for values in ([], [4], [4, 5], [3, 4, 5])] == ["none", "4", "4 and 5", "3, 4 and 5"]
