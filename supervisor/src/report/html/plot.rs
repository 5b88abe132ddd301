//! Plots a run's memory as SVG, which gets its colours from the page.
//!
//! The plotting library (plotters) supports only fixed colours. Each kind of line or area is therefore drawn in a
//! different fixed colour, which `style.css` replaces with one colour for light pages and another for dark pages.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::record::Stage;
use crate::record::timeline::{Group, Kind, Lane, MarkKind, PhaseSpan, Series, Timeline};

/// The largest number of workers that get a lane. Those with the highest peaks are drawn.
pub const MAX_LANES: usize = 16;
/// The largest number of marks in one plot.
const MAX_MARKS: usize = 400;

/// The width of both plots, in pixels.
const WIDTH: u32 = 1080;
/// The height of the plot of the process tree, in pixels.
const TREE_HEIGHT: u32 = 260;
/// The height of the lane of one worker, in pixels.
const LANE_HEIGHT: u32 = 46;
/// The height of the time axis with its labels, in pixels.
const TIME_HEIGHT: u32 = 30;
/// The left margin for lane names and memory sizes, in pixels. It is the same in both plots, so that both start at the
/// same x.
const LEFT: u32 = 118;
/// The right margin, in pixels.
const RIGHT: u32 = 14;
/// The number of steps of a drawn line. Each step is about three pixels wide.
const COLUMNS: usize = 320;
/// A limit is not drawn if it is more than this many times the peak, because everything else would then look flat. Such
/// a ceiling is stated in words.
const MAX_TIMES_PEAK: u64 = 3;

const INK: RGBColor = RGBColor(0x10, 0x10, 0x10);
const GRID: RGBColor = RGBColor(0x20, 0x20, 0x20);
const TREE: RGBColor = RGBColor(0x30, 0x00, 0x00);
const CEILING: RGBColor = RGBColor(0x50, 0x00, 0x01);
const PREDICTED: RGBColor = RGBColor(0x50, 0x00, 0x02);
const KILL: RGBColor = RGBColor(0x50, 0x00, 0x03);
const RECYCLE: RGBColor = RGBColor(0x50, 0x00, 0x04);

const fn group_color(group: Group) -> RGBColor {
    RGBColor(
        0x30,
        0x00,
        match group {
            Group::Runners(Kind::Verifier) => 1,
            Group::Runners(Kind::Profiler) => 2,
            Group::Workers(Kind::Verifier) => 3,
            Group::Workers(Kind::Profiler) => 4,
            Group::Supervisor => 5,
        },
    )
}

const fn stage_color(stage: Stage) -> RGBColor {
    RGBColor(
        0x40,
        0x00,
        match stage {
            Stage::Build => 1,
            Stage::Verify => 2,
            Stage::Screen | Stage::Profile | Stage::Confirm => 3,
            Stage::Replay => 4,
        },
    )
}

/// The group's class in the style sheet.
pub const fn class(group: Group) -> &'static str {
    match group {
        Group::Runners(Kind::Verifier) => "group1",
        Group::Runners(Kind::Profiler) => "group2",
        Group::Workers(Kind::Verifier) => "group3",
        Group::Workers(Kind::Profiler) => "group4",
        Group::Supervisor => "group5",
    }
}

#[derive(Debug, thiserror::Error)]
#[error("drawing the memory of the run: {reason}")]
pub struct PlotError {
    reason: String,
}

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self { reason: error.to_string() }
    }
}

/// Returns whether a limit is drawn in the same plot as a peak.
pub fn is_drawn(limit: Bytes, peak: Bytes) -> bool {
    limit <= peak.saturating_mul(MAX_TIMES_PEAK)
}

/// A unit in which the numbers on an axis are short, and the unit's size in base units.
struct Unit {
    name: &'static str,
    size: f64,
}

fn size_unit(most: Bytes) -> Unit {
    if Bytes::gib(3) < most {
        Unit { name: "GiB", size: Bytes::gib(1).as_f64() }
    } else {
        Unit { name: "MiB", size: Bytes::mib(1).as_f64() }
    }
}

fn time_unit(milliseconds: u64) -> Unit {
    match milliseconds / 1000 {
        0..180 => Unit { name: "s", size: 1e3 },
        180..10_800 => Unit { name: "min", size: 60e3 },
        _ => Unit { name: "h", size: 3600e3 },
    }
}

#[expect(clippy::cast_precision_loss, reason = "the lost precision is far below a pixel")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Writes a tick label, with one decimal if the value is not whole.
fn tick(value: f64, unit: &str) -> String {
    let digits = if value.fract().abs() < 1e-9 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// Plots the memory that the run's process tree owes, with the memory of its groups stacked. The height of a column is
/// the most that was owed during the column's time. Each column is represented by one moment. The height is divided
/// among the groups according to what they owed at this moment.
pub fn tree(timeline: &Timeline) -> Result<String, PlotError> {
    let (from, to) = (timeline.from, timeline.to.max(timeline.from + 1));
    let peak = timeline.tree.peak();
    let lines: Vec<(Bytes, RGBColor, &str)> =
        [(timeline.ceiling, CEILING, "ceiling"), (timeline.predicted, PREDICTED, "predicted")]
            .into_iter()
            .filter_map(|(line, color, name)| Some((line.filter(|line| is_drawn(*line, peak))?, color, name)))
            .collect();
    let highest = lines.iter().map(|(line, ..)| *line).fold(peak, Bytes::max).max(Bytes::mib(1));
    let (size, time) = (size_unit(highest), time_unit(to - from));
    let x = |at: u64| float(at.saturating_sub(from)) / time.size;
    let y = |bytes: Bytes| bytes.as_f64() / size.size;

    let moments = worst_moments(&timeline.tree, from, to);
    // At the bottom are the groups that are always present, and above them those that come and go.
    let stack: Vec<Group> = timeline.groups.keys().rev().copied().collect();
    let mut sums = vec![Bytes::ZERO; moments.len()];
    let mut layers: Vec<(Group, Vec<Bytes>)> = Vec::new();
    for group in stack {
        let Some(series) = timeline.groups.get(&group) else { continue };
        let mut reader = Reader::new(series);
        for (sum, moment) in sums.iter_mut().zip(&moments) {
            if let Some((at, tree)) = moment {
                // The parts were sampled up to some milliseconds before or after the whole, so their sum is limited to
                // the whole.
                *sum = (*sum + reader.at(*at)).min(*tree);
            }
        }
        layers.push((group, sums.clone()));
    }

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, TREE_HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(14)
            .margin_right(RIGHT)
            .x_label_area_size(TIME_HEIGHT)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0.0..x(to), 0.0..y(highest) * 1.08)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .x_labels(8)
            .y_labels(5)
            .x_label_formatter(&|value| tick(*value, time.name))
            .y_label_formatter(&|value| tick(*value, size.name))
            .draw()?;
        let steps = |values: &dyn Fn(usize) -> Bytes| staircase(moments.len(), values);
        let column = |index: f64| index / float(moments.len() as u64) * x(to);
        for (group, values) in layers.iter().rev() {
            let points = steps(&|index| values[index]).into_iter().map(|(at, owed)| (column(at), y(owed)));
            chart.draw_series(AreaSeries::new(points, 0.0, group_color(*group).filled()))?;
        }
        let outline = steps(&|index| moments[index].map_or(Bytes::ZERO, |(_, owed)| owed));
        chart.draw_series(LineSeries::new(
            outline.into_iter().map(|(at, owed)| (column(at), y(owed))),
            TREE,
        ))?;
        for (line, color, name) in lines {
            chart.draw_series(LineSeries::new([(0.0, y(line)), (x(to), y(line))], color.stroke_width(2)))?;
            let style = ("sans-serif", 15).into_font().color(&color);
            chart.draw_series([Text::new(
                format!("{name} {line}"),
                (x(to) * 0.004, y(line) + y(highest) * 0.065),
                style,
            )])?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// For each column, returns the most memory that was owed, and the moment that represents the column.
fn worst_moments(series: &Series, from: u64, to: u64) -> Vec<Option<(u64, Bytes)>> {
    let mut worst: Vec<Option<(u64, Bytes)>> = vec![None; COLUMNS];
    let span = u128::from(to - from);
    for (index, owed) in series.columns(from, to, COLUMNS).into_iter().enumerate() {
        // If the highest value began before the column, the column is represented by its middle, even if less is owed
        // there.
        let middle =
            from + u64::try_from(span * (2 * index as u128 + 1) / (2 * COLUMNS as u128)).unwrap_or(0);
        worst[index] = owed.map(|owed| (middle, owed));
    }
    for point in &series.points {
        let position = u128::from(point.at.saturating_sub(from)) * COLUMNS as u128 / span;
        let index = usize::try_from(position).unwrap_or(COLUMNS).min(COLUMNS - 1);
        if let Some((at, owed)) = &mut worst[index]
            && *owed == point.first
        {
            *at = point.at;
        }
    }
    worst
}

/// Reads a series at increasing moments.
struct Reader<'a> {
    series: &'a Series,
    next: usize,
}

impl<'a> Reader<'a> {
    fn new(series: &'a Series) -> Self {
        Self { series, next: 0 }
    }

    fn at(&mut self, moment: u64) -> Bytes {
        while self.series.points.get(self.next).is_some_and(|point| point.at <= moment) {
            self.next += 1;
        }
        match self.next.checked_sub(1).and_then(|index| self.series.points.get(index)) {
            Some(point) if moment <= self.series.last => point.first,
            _ => Bytes::ZERO,
        }
    }
}

/// Returns the corners of a step line. A column in which nothing changes adds none.
fn staircase(columns: usize, values: &dyn Fn(usize) -> Bytes) -> Vec<(f64, Bytes)> {
    let mut corners: Vec<(f64, Bytes)> = Vec::new();
    for index in 0..columns {
        let value = values(index);
        if corners.last().is_none_or(|(_, last)| *last != value) {
            if let Some(&(_, last)) = corners.last() {
                corners.push((float(index as u64), last));
            }
            corners.push((float(index as u64), value));
        }
    }
    if let Some(&(_, last)) = corners.last() {
        corners.push((float(columns as u64), last));
    }
    corners
}

/// Plots a lane for each worker. It shows the memory of the worker and its runners, in front of the worker's stages.
pub fn lanes(timeline: &Timeline) -> Result<String, PlotError> {
    let mut lanes: Vec<&Lane> = timeline.lanes.iter().collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.series.peak()));
    lanes.truncate(MAX_LANES);
    lanes.sort_by_key(|lane| lane.worker);
    let (from, to) = (timeline.from, timeline.to.max(timeline.from + 1));
    let highest = lanes.iter().map(|lane| lane.series.peak()).max().unwrap_or_default().max(Bytes::mib(1));
    let time = time_unit(to - from);
    let stages = stage_spans(timeline, &lanes, from, to);
    let count = u32::try_from(lanes.len()).unwrap_or(0);
    let height = count * LANE_HEIGHT + TIME_HEIGHT + 8;

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let end = float(to - from) / time.size;
        let mut chart = ChartBuilder::on(&area)
            .margin_top(8)
            .margin_right(RIGHT)
            .x_label_area_size(TIME_HEIGHT)
            .y_label_area_size(LEFT)
            // The first worker is at the top. Each lane is one unit high.
            .build_cartesian_2d(0.0..end, f64::from(count)..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .axis_style(GRID)
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .x_labels(8)
            .x_label_formatter(&|value| tick(*value, time.name))
            .draw()?;
        for (index, lane) in lanes.iter().enumerate() {
            let top = float(index as u64) + 0.06;
            let bottom = float(index as u64) + 0.94;
            for (stage, start, until) in stages.get(&lane.worker).into_iter().flatten() {
                let corners = [(start / time.size, top), (until / time.size, bottom)];
                chart.draw_series([Rectangle::new(corners, stage_color(*stage).filled())])?;
            }
            let owed = lane.series.columns(from, to, COLUMNS);
            let points = staircase(COLUMNS, &|column| owed[column].unwrap_or_default()).into_iter().map(
                |(at, owed)| {
                    let share = owed.as_f64() / highest.as_f64();
                    (at / float(COLUMNS as u64) * end, bottom - share * (bottom - top) * 0.94)
                },
            );
            let color = group_color(Group::Runners(lane.role.into()));
            chart.draw_series(AreaSeries::new(points, bottom, color.filled()))?;
            chart.draw_series(LineSeries::new([(0.0, bottom), (end, bottom)], GRID))?;
            name_lane(&area, index, lane)?;
        }
        for mark in timeline.marks.iter().take(MAX_MARKS) {
            let Some(index) = lanes.iter().position(|lane| lane.worker == mark.worker) else { continue };
            let position = (float(mark.at.clamp(from, to) - from) / time.size, float(index as u64) + 0.2);
            match mark.kind {
                MarkKind::KilledRunner | MarkKind::KilledWorker => {
                    chart.draw_series([Cross::new(position, 5, KILL.stroke_width(2))])?;
                }
                MarkKind::Recycled => {
                    chart.draw_series([Circle::new(position, 5, RECYCLE.stroke_width(2))])?;
                }
            }
        }
        area.present()?;
    }
    Ok(svg)
}

fn name_lane(area: &DrawingArea<SVGBackend<'_>, Shift>, index: usize, lane: &Lane) -> Result<(), PlotError> {
    let top = 8 + i32::try_from(index).unwrap_or(0) * i32::try_from(LANE_HEIGHT).unwrap_or(0);
    let name = format!("{} {}", lane.role.name(), lane.worker.0);
    area.draw(&Text::new(name, (4, top + 10), ("sans-serif", 16).into_font().color(&INK)))?;
    let peak = format!("peak {}", lane.series.peak());
    area.draw(&Text::new(peak, (4, top + 27), ("sans-serif", 13).into_font().color(&GRID)))?;
    Ok(())
}

type StageSpans = BTreeMap<WorkerId, Vec<(Stage, f64, f64)>>;

/// Returns the phases of each worker, with start and end in milliseconds. Phases of one stage at the same place of the
/// plot are merged, and phases that are too short to be visible beside others are left out. A lane therefore has at
/// most one rectangle for every two pixels of the plot's width, however many candidates there are.
fn stage_spans(timeline: &Timeline, lanes: &[&Lane], from: u64, to: u64) -> StageSpans {
    let two_pixels = (to - from) * 2 / u64::from(WIDTH) + 1;
    let mut spans: StageSpans = lanes.iter().map(|lane| (lane.worker, Vec::new())).collect();
    let mut phases: Vec<&PhaseSpan> = timeline.phases.iter().collect();
    phases.sort_by_key(|phase| phase.started);
    for phase in phases {
        let Some(spans) = spans.get_mut(&phase.worker) else { continue };
        let start = float(phase.started.clamp(from, to) - from);
        let end = float(phase.ended.clamp(from, to) - from).max(start + float(two_pixels));
        match spans.last_mut() {
            Some((stage, _, last)) if *stage == phase.stage && start <= *last + float(two_pixels) => {
                *last = last.max(end)
            }
            // This phase is too short to be visible beside its neighbour.
            Some((_, _, last)) if end < *last + float(two_pixels) => {}
            Some((_, _, last)) => {
                let start = start.max(*last);
                spans.push((phase.stage, start, end));
            }
            None => spans.push((phase.stage, start, end)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::super::super::sketch::timeline as sketch;
    use super::*;

    /// The style sheet must replace every colour that the plots use.
    #[test]
    fn style_sheet_colours_everything_that_is_drawn() {
        let style = include_str!("style.css");
        for stage in Stage::ALL {
            let RGBColor(red, green, blue) = stage_color(stage);
            let name = format!("[fill=\"#{red:02x}{green:02x}{blue:02x}\"]");
            assert!(style.contains(&name), "{stage}: {name}");
        }
        for svg in [tree(&sketch()).expect("draws"), lanes(&sketch()).expect("draws")] {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            for property in ["fill", "stroke"] {
                for color in svg.split(&format!("{property}=\"#")).skip(1).map(|rest| &rest[..6]) {
                    assert!(style.contains(&format!("[{property}=\"#{color}\"]")), "{property} {color}");
                }
            }
        }
    }

    #[test]
    fn kills_recycles_stages_and_limits_near_the_peak_are_drawn() {
        let (tree, lanes) = (tree(&sketch()).expect("draws"), lanes(&sketch()).expect("draws"));
        assert!(tree.contains("ceiling 1000 MiB") && tree.contains("predicted 420 MiB"), "{tree}");
        for color in ["#400001", "#400002", "#400003", "#500003", "#500004"] {
            assert!(lanes.contains(color), "{color}: {lanes}");
        }
        assert!(lanes.contains("verifier 1") && lanes.contains("profiler 2"), "{lanes}");
        let far = Timeline { ceiling: Some(Bytes::gib(64)), ..sketch() };
        assert!(!super::tree(&far).expect("draws").contains("ceiling"));
    }

    #[test]
    fn plot_of_a_long_run_stays_small() {
        let mut long_run = sketch();
        let phase = long_run.phases[0].clone();
        long_run.phases = (0..50_000)
            .map(|index| PhaseSpan {
                started: long_run.from + index % 10_000,
                ended: long_run.from + index % 10_000 + 3,
                stage: Stage::ALL[usize::try_from(index % 3).expect("small")],
                ..phase.clone()
            })
            .collect();
        let mark = long_run.marks[0].clone();
        long_run.marks = vec![mark; 50_000];
        let (tree, lanes) = (tree(&long_run).expect("draws"), lanes(&long_run).expect("draws"));
        assert!(tree.len() + lanes.len() < 512 << 10, "{} {}", tree.len(), lanes.len());
    }

    #[test]
    fn empty_or_momentary_timeline_is_drawn() {
        let moment = Timeline { from: 5, to: 5, ..Timeline::default() };
        for timeline in [Timeline::default(), moment] {
            assert!(tree(&timeline).is_ok());
            assert!(lanes(&timeline).is_ok());
        }
    }
}
