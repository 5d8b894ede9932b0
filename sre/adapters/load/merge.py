"""What the processes of a stage report, put together: raw records, never percentiles of percentiles."""

from __future__ import annotations

from collections.abc import Sequence

from sre.adapters.load.sender import SAMPLE_SECONDS
from sre.adapters.load.wire import News, record_of
from sre.gate.percentiles import nearest_rank
from sre.gate.records import Cause, RequestRecord
from sre.gate.stages import ClientCost, InFlightSample, LiveCounts, StageLoad, StagePlan
from sre.gate.summary import events_per_token

MUCH_CACHED = 0.5
"""Of the prompts' tokens: a note then says that they came from a cache."""
LEAST_OF_PROMPT, MOST_OF_PROMPT = 0.8, 1.25
"""Of the prompt tokens asked for. Where the server counts nothing in advance, four characters are taken for a token."""
PROMPT_FRAME_TOKENS = 64
"""A chat template and the marks of begin and end may be longer than a short prompt was to be."""
MOST_EVENTS_PER_TOKEN = 1.05
"""With more, a token came in several events: no engine does that. The rest is for an end that is told twice."""
LEAST_EVENTS_PER_TOKEN = 1 / 8
"""With fewer, most tokens came unseen. vLLM packs together what a slow reader has not taken: two or three."""


class Merge:
    """A stage as far as its processes told."""

    def __init__(self, plan: StagePlan, planned: int, parts: int, started_at: float) -> None:
        self._plan, self._planned, self._parts, self._started_at = plan, planned, parts, started_at
        self._records: list[RequestRecord] = []
        self._samples: dict[int, int] = {}
        self._last: dict[int, News] = {}
        self._ok = self._failed = self._shed = 0
        self._ttft: list[float] = []
        self._e2e: list[float] = []
        self._lag: list[float] = []

    def add(self, part: int, news: News) -> None:
        """Take what process ``part`` told."""
        self._last[part] = news
        for number, in_flight in news.samples:
            self._samples[number] = self._samples.get(number, 0) + in_flight
        for row in news.rows:
            record = record_of(row)
            self._records.append(record)
            if record.cause is Cause.OK:
                self._ok += 1
            elif record.failed:
                self._failed += 1
            elif record.cause is Cause.SHED_BY_CLIENT:
                self._shed += 1
            if record.cause is not Cause.CANCELLED and record.cause is not Cause.SHED_BY_CLIENT:
                self._ttft.append(record.ttft_seconds)
                self._e2e.append(record.e2e_seconds)
            if (lag := record.lag_seconds) is not None:
                self._lag.append(lag)

    @property
    def complete(self) -> bool:
        """Every process reported its end."""
        return len(self._last) == self._parts and all(news.last for news in self._last.values())

    def live(self, at: float) -> LiveCounts:
        """Where the stage stands; percentiles over all that ended, failures as infinitely slow."""
        for values in (self._ttft, self._e2e, self._lag):
            values.sort()  # what came since the last time, into a list in order: quick
        told = self._last.values()
        return LiveCounts(
            at=at,
            started_at=self._started_at,
            planned=self._planned,
            due=sum(news.due for news in told),
            sent=sum(news.sent for news in told),
            in_flight=sum(news.in_flight for news in told),
            ok=self._ok,
            failed=self._failed,
            shed=self._shed,
            over_limit=sum(news.over_limit for news in told),
            ttft_p50_seconds=nearest_rank(self._ttft, 0.5),
            ttft_p99_seconds=nearest_rank(self._ttft, 0.99),
            e2e_p99_seconds=nearest_rank(self._e2e, 0.99),
            lag_p99_seconds=nearest_rank(self._lag, 0.99),
        )

    def result(
        self, *, now: float, own_cpu_seconds: float, aborted: str | None, wall_started_at: float, notes: Sequence[str]
    ) -> StageLoad:
        """
        Return the stage.

        Args:
            now: End of the stage if a process did not tell when it ended.
            own_cpu_seconds: What this process took meanwhile.
        """
        self._lag.sort()
        records = sorted(self._records, key=lambda record: record.number)
        told = list(self._last.values())
        loop_lags = sorted(lag for news in told for lag in news.loop_lags)
        samples = [
            InFlightSample(self._started_at + number * SAMPLE_SECONDS, in_flight)
            for number, in_flight in sorted(self._samples.items())
        ]
        schedule_ended_at = self._started_at + self._plan.duration_seconds
        ends = [news.stopped_at for news in told if news.last]
        return StageLoad(
            plan=self._plan,
            planned=self._planned,
            started_at=self._started_at,
            schedule_ended_at=schedule_ended_at,
            stopped_at=max(ends) if len(ends) == self._parts else now,
            records=records,
            in_flight=samples,
            client=ClientCost(
                cpu_seconds=own_cpu_seconds + sum(news.cpu_seconds for news in told),
                processes=self._parts,
                loop_lag_p99_seconds=nearest_rank(loop_lags, 0.99) or 0.0,
                lag_p50_seconds=nearest_rank(self._lag, 0.5) or 0.0,
                lag_p99_seconds=nearest_rank(self._lag, 0.99) or 0.0,
                lag_max_seconds=self._lag[-1] if self._lag else 0.0,
            ),
            aborted=aborted,
            wall_started_at=wall_started_at,
            notes=(
                *notes, *self._wordless(), *self._short(), *self._prompts(), *self._pieces(), *self._cached(),
                *self._again(),
            ),
        )  # fmt: skip

    def _wordless(self) -> list[str]:
        count = sum(record.wordless for record in self._records)
        if not count:
            return []
        return [
            f"{count} of {self._ok} answers had tokens and no text (a prompt of filler makes no sense): "
            "their TTFT is the moment of their end"
        ]

    def _short(self) -> list[str]:
        """Answers without the length that they were asked to have: less work than the figures seem to be of."""
        fixed = {kind.name for kind in (*self._plan.classes, *self._plan.extra_classes) if kind.fixed_length}
        lengths = [
            (record.output_tokens, record.max_tokens)
            for record in self._records
            if record.cause is Cause.OK and record.request_class in fixed
            and record.output_tokens is not None and record.max_tokens is not None
        ]  # fmt: skip
        short = [(had, asked) for had, asked in lengths if had < asked]
        if not short:
            return []
        had, asked = sum(had for had, _ in short), sum(asked for _, asked in short)
        return [
            f"{len(short)} of {len(lengths)} answers were shorter than the length asked for ({had} tokens of {asked}): "
            "the server does not heed ignore_eos, or ends early; every figure is of that work"
        ]

    def _prompts(self) -> list[str]:
        """Prompts far from the length that they were asked to have, by the server's own count."""
        lengths = [
            (record.prompt_tokens, record.asked_prompt_tokens)
            for record in self._records
            if record.cause is Cause.OK and record.prompt_tokens is not None and record.asked_prompt_tokens is not None
        ]
        found = []
        for which, far, why in (
            ("shorter", [(had, asked) for had, asked in lengths if had < LEAST_OF_PROMPT * asked], "cut"),
            (
                "longer",
                [(had, asked) for had, asked in lengths if had > MOST_OF_PROMPT * asked + PROMPT_FRAME_TOKENS],
                "lengthened",
            ),
        ):
            if far:
                had, asked = sum(had for had, _ in far), sum(asked for _, asked in far)
                found.append(
                    f"{len(far)} of {len(lengths)} prompts were far {which} than the length asked for ({had} tokens of "
                    f"{asked}, by the server's usage): they were {why} on the way, or the count by which they were "
                    "made is another; every figure is of that work"
                )
        return found

    def _pieces(self) -> list[str]:
        """What is sent is not what is counted: no verdict by itself, since a server may cut its stream as it likes."""
        ratio = events_per_token(self._records)
        if ratio is None or LEAST_EVENTS_PER_TOKEN <= ratio <= MOST_EVENTS_PER_TOKEN:
            return []
        if ratio > 1:
            return [
                f"{ratio:.2f} content events per token of usage: the server sends text more than once, or its usage "
                "counts too few; tokens per second and TPOT rest on usage"
            ]
        return [
            f"one content event per {1 / ratio:.1f} tokens of usage: the server packs them together, or claims more "
            "than it sends; TTFT is that of the first event, tokens per second and TPOT rest on usage"
        ]

    def _cached(self) -> list[str]:
        """Prompts that begin differently and came from a cache all the same."""
        answered = [record for record in self._records if record.cause is Cause.OK]
        asked = sum(record.prompt_tokens or 0 for record in answered)
        cached = sum(record.cached_tokens or 0 for record in answered)  # vLLM leaves out a 0
        if not asked or cached < MUCH_CACHED * asked:
            return []
        return [
            f"{cached / asked:.0%} of the prompts' tokens came from the server's cache, though every prompt begins "
            "differently: TTFT has little of the work of a prompt in it"
        ]

    def _again(self) -> list[str]:
        count = sum(record.sent_again for record in self._records)
        if not count:
            return []
        return [
            f"{count} of {len(self._records)} requests were sent again: the server had closed the kept connection that "
            "they went out on; their latency counts from the first time"
        ]
