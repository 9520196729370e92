"""The figures, as plotly's own JSON. The one module that knows plotly.

Colours are those of Okabe and Ito, which stay apart without red-green vision; every series also has a shape or a
pattern of its own, and its name. The page exchanges them for lighter ones in the dark; see ``DARK``.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..quantities import format_percent, format_share, format_us
from .breakdown import PARTS, Breakdown
from .contenders import Contender
from .trials import Course, Trial

if TYPE_CHECKING:
    import plotly.graph_objects as go

INK, QUIET, GRID, BAND = "#1b1f24", "#5b636d", "#d9dee4", "#e8e3d3"
BLUE, ORANGE, GREEN, RED = "#0072b2", "#b36b00", "#007a5a", "#c24e00"
DARK = {
    INK: "#e9edf2",
    QUIET: "#a9b2bd",
    GRID: "#39414b",
    BAND: "#3a3626",
    BLUE: "#56b4e9",
    ORANGE: "#e69f00",
    GREEN: "#2fc49a",
    RED: "#ff8a4c",
}
"""Each colour of a figure in the light to its colour in the dark."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_ROOM = 1.25
"""The axis of the search ends at that many times the default: what is slower is of no interest, however slow it is."""
_PATTERNS = (("", BLUE), ("/", GREEN), ("x", ORANGE), (".", QUIET))


def library() -> str:
    """The source of plotly.js, to be put into the page: nothing is fetched when it is read."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def rounds_figure(finalists: Sequence[Contender], min_gain: float | None) -> dict[str, Any] | None:
    """Every round of every finalist, with estimate and interval; ``None`` without a round."""
    import plotly.graph_objects as go

    shown = [each for each in finalists if each.finalist.pairs]
    if not shown:
        return None
    figure = go.Figure()
    for name, parity, symbol in (("odd round", 1, "circle-open"), ("even round", 0, "diamond-open")):
        found = [(each.letter, pair) for each in shown for pair in each.finalist.pairs if pair.round % 2 == parity]
        if found:
            figure.add_trace(
                go.Scatter(
                    x=[100 * pair.gain for _, pair in found],
                    y=[letter for letter, _ in found],
                    mode="markers",
                    name=name if any(pair.round for _, pair in found) else "round",
                    marker={"symbol": symbol, "size": 9, "color": BLUE, "line": {"width": 1.6}},
                    hovertext=[f"round {pair.round}: {format_share(pair.gain)}" for _, pair in found],
                    hoverinfo="text",
                )
            )
    known = [each for each in shown if each.finalist.gain is not None]
    figure.add_trace(_estimates(known))
    _upright(figure, 0.0, "default", QUIET, "solid")
    if min_gain:
        _upright(figure, 100 * min_gain, "asked for", RED, "dash")
    figure.update_xaxes(title="gain against the default, in %", ticksuffix=" %", rangemode="tozero")
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=[each.letter for each in reversed(shown)], showgrid=False
    )
    return _finish(figure, height=190 + 44 * len(shown))


def course_figure(course: Course) -> dict[str, Any] | None:
    """Step time over trials, best so far, default with noise band, failures; ``None`` without a trial that was run."""
    import plotly.graph_objects as go

    measured = [trial for trial in course.trials if trial.entry.value_us is not None]
    if not measured:
        return None
    values = [trial.entry.value_us or 0.0 for trial in measured]
    low_us, high_us = min(values), _highest(values, course)
    unit, factor = _unit([high_us])
    pad_us = 0.06 * max(high_us - low_us, 0.1 * high_us)
    row_us = high_us + pad_us
    figure = go.Figure()
    for name, symbol, some in (
        ("trial", "circle", [trial for trial in measured if trial.entry.state == "measured"]),
        ("measured again", "diamond", [trial for trial in measured if trial.entry.state != "measured"]),
    ):
        shown = [trial for trial in some if (trial.entry.value_us or 0.0) <= high_us]
        heights = [trial.entry.value_us or 0.0 for trial in shown]
        _scatter(figure, shown, [height / factor for height in heights], name, symbol, BLUE)
    slow = [trial for trial in measured if (trial.entry.value_us or 0.0) > high_us]
    _scatter(figure, slow, [row_us / factor] * len(slow), "slower than shown", "triangle-up", BLUE)
    failed = [trial for trial in course.trials if trial.failed]
    _scatter(figure, failed, [row_us / factor] * len(failed), "failed: no step time", "x-thin-open", RED)
    best = [(trial.entry.number, value) for trial, value in zip(course.trials, course.best_us, strict=True) if value]
    figure.add_trace(
        go.Scatter(
            x=[number for number, value in best if value <= high_us],
            y=[value / factor for _, value in best if value <= high_us],
            mode="lines",
            name="best so far",
            line={"shape": "hv", "color": GREEN, "width": 2},
            hoverinfo="skip",
        )
    )
    if course.default_us is not None:
        _default(figure, course.default_us / factor, course.noise or 0.0)
    figure.update_xaxes(title="trial", dtick=_whole_steps(len(course.trials)))
    ends_us = low_us - pad_us, (row_us if slow or failed else high_us) + pad_us
    figure.update_yaxes(title=f"step time, in {unit}", range=[end / factor for end in ends_us])
    return _finish(figure, height=400)


def time_figure(found: Sequence[Breakdown]) -> dict[str, Any] | None:
    """A bar for each step that was profiled, cut where its time goes; ``None`` where none was."""
    import plotly.graph_objects as go

    shown = [each for each in found if each.parts_us]
    if not shown:
        return None
    unit, factor = _unit([part for each in shown for part in each.parts_us or ()])
    figure = go.Figure()
    for index, ((name, _), (pattern, colour)) in enumerate(zip(PARTS, _PATTERNS, strict=True)):
        parts = [(each.parts_us or (0.0,) * len(PARTS))[index] for each in shown]
        shares = [part / sum(each.parts_us or (1.0,)) for part, each in zip(parts, shown, strict=True)]
        figure.add_trace(
            go.Bar(
                x=[part / factor for part in parts],
                y=[each.label for each in shown],
                orientation="h",
                name=name,
                marker={"color": colour, "pattern": {"shape": pattern, "size": 7, "solidity": 0.35}},
                hovertext=[
                    f"{name}: {format_us(part)}, {format_percent(share)}"
                    for part, share in zip(parts, shares, strict=True)
                ],
                hoverinfo="text",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title=f"a step under the profiler, in {unit}", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return _finish(figure, height=170 + 52 * len(shown))


def _estimates(known: Sequence[Contender]) -> go.Scatter:
    import plotly.graph_objects as go

    gains = [100 * (each.finalist.gain or 0.0) for each in known]
    ends = [each.finalist.interval or (each.finalist.gain or 0.0,) * 2 for each in known]
    return go.Scatter(
        x=gains,
        y=[each.letter for each in known],
        mode="markers",
        name="estimate, 95 % interval" if any(each.finalist.interval for each in known) else "estimate",
        marker={"symbol": "line-ns-open", "size": 22, "color": INK, "line": {"width": 3}},
        error_x={
            "type": "data",
            "array": [100 * high - gain for (_, high), gain in zip(ends, gains, strict=True)],
            "arrayminus": [gain - 100 * low for (low, _), gain in zip(ends, gains, strict=True)],
            "thickness": 2.5,
            "width": 8,
            "color": INK,
        },
        hovertext=[f"{each.letter}: {format_share(each.finalist.gain or 0.0)}" for each in known],
        hoverinfo="text",
    )


def _scatter(
    figure: go.Figure, trials: Sequence[Trial], heights: Sequence[float], name: str, symbol: str, colour: str
) -> None:
    """Add trials as marks of one kind, where there are any."""
    import plotly.graph_objects as go

    if trials:
        figure.add_trace(
            go.Scatter(
                x=[trial.entry.number for trial in trials],
                y=list(heights),
                mode="markers",
                name=name,
                marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 3 if "open" in symbol else 0}},
                hovertext=[_hover(trial) for trial in trials],
                hoverinfo="text",
            )
        )


def _hover(trial: Trial) -> str:
    """What a point says; plotly reads a few tags in it, so what comes from files is escaped."""
    lines = [f"trial {trial.entry.number}", *(html.escape(part) for part in trial.entry.candidate.key.split(" "))]
    if trial.entry.value_us is not None:
        gain = f" ({format_share(trial.gain)})" if trial.gain is not None else ""
        return "<br>".join([*lines, f"{format_us(trial.entry.value_us)}{gain}"])
    return "<br>".join([*lines, html.escape(trial.failure.name if trial.failure else trial.entry.state)])


def _default(figure: go.Figure, default: float, noise: float) -> None:
    """A dashed line where the default lies, in a band as wide as its launches differ."""
    if noise:
        figure.add_hrect(
            y0=default * (1 - noise), y1=default * (1 + noise), fillcolor=BAND, line_width=0, layer="below"
        )
    figure.add_hline(y=default, line={"color": ORANGE, "width": 2, "dash": "dash"}, layer="below")
    _legend_only(figure, "default, band: noise floor", ORANGE, "dash")


def _upright(figure: go.Figure, x: float, name: str, colour: str, dash: str) -> None:
    figure.add_vline(x=x, line={"color": colour, "width": 2, "dash": dash}, layer="below")
    _legend_only(figure, name, colour, dash)


def _legend_only(figure: go.Figure, name: str, colour: str, dash: str) -> None:
    """A line across the whole figure is no series, and would have no name in the legend."""
    import plotly.graph_objects as go

    line = {"color": colour, "width": 2, "dash": dash}
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=name, line=line))


def _unit(values_us: Sequence[float]) -> tuple[str, float]:
    largest = max(values_us)
    return ("s", 1e6) if largest >= 1e6 else ("ms", 1e3) if largest >= 1e3 else ("µs", 1.0)


def _highest(values_us: Sequence[float], course: Course) -> float:
    """Where the axis ends; slower trials and failures stand in a row above."""
    if course.default_us is None:
        return max(values_us)
    return min(max(values_us), course.default_us * max(_ROOM, 1 + 3 * (course.noise or 0.0)))


def _whole_steps(trials: int) -> int:
    """Distance of the ticks below so many trials: whole numbers, and no more than ten of them."""
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, trials) if trials <= 10 * step)


def _finish(figure: go.Figure, height: int) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "linecolor": QUIET, "zeroline": False, "automargin": True, "fixedrange": True}
    figure.update_xaxes(showline=True, **axis)
    figure.update_yaxes(**axis)
    figure.update_layout(
        template={},
        height=height,
        font={"family": _FONT, "size": 14, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "xanchor": "left", "traceorder": "normal"},
        hovermode="closest",
        showlegend=True,
    )
    drawn: dict[str, Any] = figure.to_plotly_json()
    return drawn
