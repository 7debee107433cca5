"""The panels of the dashboards in one style: what each kind of panel looks like, and how a query selects its series.

Every query selects by the variable `cluster`, whose "All" is `.*`: that also matches series without the label, where
one cluster has Prometheus to itself. Lines and rows of a panel are bounded, whatever the size of the fleet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from rankmend.links import RUNBOOKS

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
CLUSTER: Final = 'cluster=~"$cluster"'
NODE: Final = f'{CLUSTER},node=~"$node"'
JOB: Final = f'{CLUSTER},job_id="$job"'
LINES_MAX: Final = 10  # of a panel
ROWS_MAX: Final = 50  # of a table
WIDTH: Final = 24

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
Steps = Sequence[tuple[float | None, str]]
BAD_ABOVE_ZERO: Final[Steps] = ((None, GREEN), (1, RED))
WARN_ABOVE_ZERO: Final[Steps] = ((None, GREEN), (1, YELLOW))
NEUTRAL: Final[Steps] = ((None, BLUE),)
DEVIATION: Final[Steps] = ((None, GREEN), (4, YELLOW), (8, RED))  # robust standard deviations
RATIO_HIGH: Final[Steps] = ((None, GREEN), (1.05, YELLOW), (1.2, RED))
RATIO_LOW: Final[Steps] = ((None, RED), (0.5, YELLOW), (0.9, GREEN))

UID: Final = {name: f"rankmend-{name}" for name in ("fleet", "node", "job", "incidents", "goodput")}


@dataclass(frozen=True)
class Column:
    """A link from a column of a table."""

    name: str
    title: str
    url: str


def to_node(column: str = "node") -> Column:
    url = f"/d/{UID['node']}?var-node=${{__data.fields.{column}}}&${{cluster:queryparam}}&${{__url_time_range}}"
    return Column(column, "Open the node", url)


def to_job(column: str = "job_id") -> Column:
    url = f"/d/{UID['job']}?var-job=${{__data.fields.{column}}}&${{cluster:queryparam}}&${{__url_time_range}}"
    return Column(column, "Open the job", url)


def to_incidents(column: str) -> Column:
    url = f"/d/{UID['incidents']}?${{cluster:queryparam}}&${{__url_time_range}}"
    return Column(column, "Open the incidents", url)


def to_finding(column: str = "check") -> Column:
    """Return the link from a check to its section of the runbook."""
    url = f"${{runbooks}}/findings.md#${{__data.fields.{column}}}"
    return Column(column, "What to do", url)


def to_notice(column: str = "notice") -> Column:
    """Return the link to the controller's runbook; Grafana can't write the lower-case name of a section."""
    return Column(column, "What to do", "${runbooks}/controller.md")


def _query(
    expression: str, legend: str = "__auto", *, is_now: bool = False
) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
    return made.instant() if is_now else made.range()


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value, color) for value, color in steps])
    )


def _placed(panel: Any, title: str, about: str, unit: str, width: int, height: int) -> Any:
    return (
        panel.title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(height)
    )


def number(
    title: str,
    expression: str,
    about: str,
    *,
    unit: str = "short",
    steps: Steps = NEUTRAL,
    width: int = 4,
    has_line: bool = False,
) -> stat.Panel:
    """Return one number, coloured by its thresholds."""
    mode = BigValueGraphMode.AREA if has_line else BigValueGraphMode.NONE
    color = BigValueColorMode.VALUE if steps is NEUTRAL else BigValueColorMode.BACKGROUND
    panel: stat.Panel = _placed(stat.Panel(), title, about, unit, width, 4)
    return (
        panel.with_target(_query(expression, is_now=not has_line))
        .thresholds(_thresholds(steps))
        .graph_mode(mode)
        .color_mode(color)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def rows(
    title: str,
    expression: str,
    about: str,
    *,
    unit: str = "short",
    steps: Steps = NEUTRAL,
    width: int = 12,
    height: int = 8,
    value: str = "value",
    links: Sequence[Column] = (),
    hidden: Sequence[str] = (),
) -> table.Panel:
    """Return a table of an instant query: a row a series, a column a label, the value last."""
    panel: table.Panel = _placed(table.Panel(), title, about, unit, width, height)
    panel = panel.with_target(_query(expression, is_now=True).format(PromQueryFormat.TABLE))
    panel = panel.thresholds(_thresholds(steps))
    excluded = dict.fromkeys(("Time", "__name__", *hidden), True)
    panel = panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": excluded, "renameByName": {"Value": value}},
        )
    )
    panel = panel.override_by_name(
        value, [DynamicConfigValue("custom.cellOptions", {"type": "color-text"})]
    )
    for link in links:
        target = {"title": link.title, "url": link.url, "targetBlank": link.url.startswith("${")}
        panel = panel.override_by_name(link.name, [DynamicConfigValue("links", [target])])
    return panel


def lines(
    title: str,
    queries: Sequence[tuple[str, str]],
    about: str,
    *,
    unit: str = "short",
    width: int = 12,
    height: int = 8,
    is_stacked: bool = False,
    least: float | None = 0,
) -> timeseries.Panel:
    """Return lines over time, of (expression, legend)."""
    panel: timeseries.Panel = _placed(timeseries.Panel(), title, about, unit, width, height)
    for expression, legend in queries:
        panel = panel.with_target(_query(expression, legend))
    legend_box = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
    )
    panel = panel.legend(legend_box).tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)
    )
    panel = panel.fill_opacity(40 if is_stacked else 5).span_nulls(False)
    if is_stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return panel if least is None else panel.min(least)


def bars(
    title: str,
    expression: str,
    legend: str,
    about: str,
    *,
    unit: str = "short",
    width: int = 12,
    height: int = 8,
) -> bargauge.Panel:
    """Return one bar for each series of an instant query."""
    panel: bargauge.Panel = _placed(bargauge.Panel(), title, about, unit, width, height)
    return (
        panel.with_target(_query(expression, legend, is_now=True))
        .thresholds(_thresholds(NEUTRAL))
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
    )


def heat(
    title: str, expression: str, about: str, *, unit: str = "s", width: int = 12, height: int = 8
) -> heatmap.Panel:
    """Return a heat map of a histogram's buckets: ``expression`` keeps the label `le`."""
    panel: heatmap.Panel = _placed(heatmap.Panel(), title, about, unit, width, height)
    return panel.with_target(_query(expression, "{{le}}").format(PromQueryFormat.HEATMAP)).color(
        heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    )


def top(expression: str, count: int = LINES_MAX) -> str:
    return f"topk({count}, {expression})"


def grown(metric: str, label: str, only: str = "", apart: str = "") -> str:
    """Return how much a counter grew in the time shown, of all controllers.

    ``only``: matchers, each with a comma behind it; ``apart``: labels that tell its series apart, likewise.
    """
    once = f"max by (cluster, instance, {apart}{label})"  # of two replicas of Prometheus
    return f"sum by ({label}) ({once} (increase({metric}{{{only}{CLUSTER}}}[$__range])))"


def make(name: str, title: str, about: str, variables: Sequence[Any] = ()) -> dashboard.Dashboard:
    """Return a dashboard without panels, with the links and variables that all have."""
    made = (
        dashboard.Dashboard(f"rankmend: {title}")
        .uid(UID[name])
        .description(about)
        .tags(["rankmend"])
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .editable()
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(
            _values("cluster", "Cluster", 'label_values(up{job=~"rankmend-.*"}, cluster)')
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
        .with_variable(
            dashboard.TextBoxVariable("runbooks")
            .label("Runbooks")
            .default_value(RUNBOOKS)
            .hide(VariableHide.HIDE_VARIABLE)
        )
    )
    for variable in variables:
        made = made.with_variable(variable)
    return made.link(
        dashboard.DashboardLink("rankmend")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["rankmend"])
        .include_vars(True)
        .keep_time(True)
    )


def _values(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )


def node_variable() -> dashboard.QueryVariable:
    return _values("node", "Node", f'label_values(up{{job="rankmend-agent",{CLUSTER}}}, node)')


def job_variable() -> dashboard.QueryVariable:
    """Return the jobs that had ranks in the time that is shown, by their names."""
    infos = f"last_over_time(rankmend_rank_info{{{CLUSTER}}}[$__range])"
    query = f"query_result(max by (job_id, job_name) ({infos}))"
    both = '/job_name="(?<text>[^"]+)|job_id="(?<value>[^"]+)/g'
    return _values("job", "Job", query).regex(both)


def row(title: str) -> dashboard.Row:
    return dashboard.Row(title)
