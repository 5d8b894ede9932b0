"""The rate at which the service saturates: bracket, then bisection. No curve is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """
    One rate tried.

    Attributes:
        saturated: None: could not be told.
        sign: By what.
        blur_ratio: By this share of it the rate may lie above what the service holds, unseen: a short stage shows
            little.
    """

    rate_rps: float
    saturated: bool | None
    sign: str
    blur_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Knee:
    """
    Where it lies.

    Attributes:
        good_rps: Highest rate held; None: none.
        saturated_rps: Lowest rate that saturated; None: none was reached.
        estimate_rps: Middle of the bracket; None without a bracket.
        resolution_rps: Half its width, or how much its stages can tell apart if that is more.
        reason: Why the search ended: ``resolved``, ``not_reached`` (it lies above the last stage), ``below_first``,
            ``too_many_stages``, ``unclear``, ``client_limited``, ``given_up``.
    """

    good_rps: float | None
    saturated_rps: float | None
    estimate_rps: float | None
    resolution_rps: float | None
    reason: str
    probes: Sequence[Probe]


def merge(rate_rps: float, looks: Sequence[tuple[bool | None, str]], blur_ratio: float = 0.0) -> Probe:
    """
    One probe of what several passes saw at one rate: the majority of those that could tell; a tie is not known.

    The search starts from it once, after the last pass, and not in every one of them.
    """
    told = [(saturated, sign) for saturated, sign in looks if saturated is not None]
    yes = sum(1 for saturated, _ in told if saturated)
    if not told or 2 * yes == len(told):
        sign = looks[0][1] if looks and not told else f"{yes} of {len(told)} passes saturated"
        return Probe(rate_rps, None, sign, blur_ratio)
    saturated = 2 * yes > len(told)
    sign = next(sign for found, sign in told if found is saturated)
    said = sign if len(told) == 1 else f"{sign} ({yes} of {len(told)} passes saturated)"
    return Probe(rate_rps, saturated, said, blur_ratio)


def bracket(history: Sequence[Probe]) -> tuple[float | None, float | None]:
    """
    (highest rate held below the lowest saturated one, lowest saturated rate); None: there is none.

    A rate held above a saturated one contradicts it: the bracket then spans both.
    """
    saturated = sorted(probe.rate_rps for probe in history if probe.saturated)
    held = sorted(probe.rate_rps for probe in history if probe.saturated is False)
    if not saturated:
        return (held[-1] if held else None), None
    if held and held[-1] > saturated[0]:
        below = [rate for rate in held if rate < saturated[0]]
        above = [rate for rate in saturated if rate > held[-1]]
        return (below[-1] if below else None), (above[0] if above else None)
    return (held[-1] if held else None), saturated[0]


def next_probe(history: Sequence[Probe], *, resolution_ratio: float, probes_left: int) -> float | None:
    """
    The rate to try next; None: the search is over, and ``conclude`` says why.

    Args:
        history: The staircase, one probe per rate, and every probe since.
        resolution_ratio: Width of the bracket, of its middle, that is fine enough.
    """
    if probes_left <= 0 or _contradicts(history):
        return None
    good, saturated = bracket(history)
    if saturated is None:
        return None
    if good is None:
        # None held: halve down from the lowest that did not.
        rate = saturated / 2
    elif saturated - good <= _fine(history, resolution_ratio) * (good + saturated) / 2:
        return None
    else:
        rate = (good + saturated) / 2
    # A rate that could not be told once would not be the second time.
    return None if any(_same(probe.rate_rps, rate) for probe in history) else rate


def conclude(history: Sequence[Probe], *, resolution_ratio: float, stopped: str = "") -> Knee:
    """
    Where the knee lies, by what was tried.

    Args:
        stopped: ``client_limited`` or ``given_up`` where the search was ended from outside.
    """
    good, saturated = bracket(history)
    estimate = resolution = None
    if good is not None and saturated is not None:
        estimate = (good + saturated) / 2
        resolution = max((saturated - good) / 2, _blur(history) * estimate)
    return Knee(good, saturated, estimate, resolution, stopped or _reason(history, resolution_ratio), tuple(history))


def _reason(history: Sequence[Probe], resolution_ratio: float) -> str:
    good, saturated = bracket(history)
    if _contradicts(history) or (good is None and saturated is None):
        return "unclear"
    if saturated is None:
        # The highest rate tried could not be told: the knee is not known to lie above it.
        top = max(probe.rate_rps for probe in history)
        return "not_reached" if good == top else "unclear"
    if good is None:
        return "below_first"
    if saturated - good <= _fine(history, resolution_ratio) * (good + saturated) / 2:
        return "resolved"
    middle = (good + saturated) / 2
    return "unclear" if any(_same(probe.rate_rps, middle) for probe in history) else "too_many_stages"


def _fine(history: Sequence[Probe], resolution_ratio: float) -> float:
    """Of the middle: a narrower bracket is not wanted, or no stage of this length could tell its ends apart."""
    return max(resolution_ratio, _blur(history))


def _blur(history: Sequence[Probe]) -> float:
    """Of the bracket's ends, the worse one."""
    ends = bracket(history)
    return max((probe.blur_ratio for probe in history if probe.rate_rps in ends), default=0.0)


def _contradicts(history: Sequence[Probe]) -> bool:
    saturated = [probe.rate_rps for probe in history if probe.saturated]
    held = [probe.rate_rps for probe in history if probe.saturated is False]
    return bool(saturated and held) and max(held) > min(saturated)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * max(a, b)
