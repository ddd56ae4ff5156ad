//! The charts, as SVG.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::prelude::*;

use crate::lines::Unit;
use crate::race::Outcome;
use crate::scale::Curve;

/// A row of the first chart.
enum Row {
    /// A race, with the contender whose speed is 1.
    Heading(String),
    Bar {
        name: &'static str,
        speed: Speed,
        colour: RGBColor,
        goal: Option<f64>,
    },
}

/// The speed of a contender, the first one's being 1: the median with its quartiles.
#[derive(Clone, Copy)]
struct Speed {
    low: f64,
    median: f64,
    high: f64,
}

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OTHERS: RGBColor = RGBColor(0xa8, 0xa8, 0xa8);
const LIMIT: RGBColor = RGBColor(0x40, 0x40, 0x40);
const GOAL: RGBColor = RGBColor(0xd0, 0x3a, 0x2b);
/// The height of a row, and of the space above and below all of them.
const HEIGHT: u32 = 18;
const ABOVE: u32 = 64;
const BELOW: u32 = 50;
const WIDTH: u32 = 1000;
/// The width of the names, and of the figures at the end of the rows.
const NAMES: u32 = 240;
const FIGURES: u32 = 60;
/// A bar that is longer is cut.
const LONGEST: f64 = 5.0;

/// The speeds of all contenders.
///
/// # Errors
/// Those of the file system.
pub(crate) fn ratios(races: &[Outcome], file: &Path) -> io::Result<()> {
    let mut rows = Vec::new();
    for race in races {
        let Some(first) = race.reference() else { continue };
        rows.push(Row::Heading(format!("{}; 1 = {}", race.line.title, first.contender.name)));
        // Of times less is better: the speed is the other way round.
        let speed = |ratio: f64| if race.line.unit == Unit::Micros { 1.0 / ratio } else { ratio };
        for result in race.results.iter().skip(1) {
            let Some(ratio) = race.ratio(result) else { continue };
            let [one, other] = [ratio.low, ratio.high].map(speed);
            let speeds = Speed { low: one.min(other), median: speed(ratio.median), high: one.max(other) };
            rows.push(Row::Bar {
                name: result.contender.name,
                speed: speeds,
                colour: if result.contender.is_ours() { OURS } else { OTHERS },
                goal: result.contender.goal.map(|goal| speed(goal.limit())),
            });
        }
    }
    draw_ratios(&rows, file).map_err(|error| io::Error::other(error.to_string()))
}

fn draw_ratios(rows: &[Row], file: &Path) -> Result<(), Box<dyn Error>> {
    let count = u32::try_from(rows.len())?;
    let root = SVGBackend::new(file, (WIDTH, count * HEIGHT + ABOVE + BELOW)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: u32| ("sans-serif", size).into_text_style(&root);
    root.draw(&Text::new("Speed beside the first contender: longer is better", (10, 10), text(18)))?;
    legend(&root)?;
    let highest = rows.iter().map(|row| match row {
        Row::Heading(_) => 1.0,
        Row::Bar { speed, goal, .. } => speed.high.max(goal.unwrap_or(0.0)),
    });
    let longest = highest.fold(1.0, f64::max).min(LONGEST);
    let mut chart = ChartBuilder::on(&root)
        .x_label_area_size(BELOW - 10)
        .margin_top(ABOVE)
        .margin_left(NAMES)
        .margin_right(FIGURES)
        .build_cartesian_2d(0.0..longest * 1.02, f64::from(count)..0.0)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().light_line_style(WHITE).draw()?;
    for (place, row) in (0_u32..).zip(rows) {
        let (top, bottom) = (f64::from(place) + 0.15, f64::from(place) + 0.85);
        let (_, y) = chart.backend_coord(&(0.0, top));
        match row {
            Row::Heading(title) => {
                // The grid ends where the words are.
                let (_, end) = chart.backend_coord(&(0.0, bottom));
                root.draw(&Rectangle::new([(0, y - 2), (WIDTH as i32, end + 2)], WHITE.filled()))?;
                root.draw(&Text::new(title.as_str(), (10, y), text(13)))?;
            }
            Row::Bar { name, speed, colour, goal } => {
                let [low, median, high] =
                    [speed.low, speed.median, speed.high].map(|value| value.min(longest));
                chart.draw_series([Rectangle::new([(0.0, top), (median, bottom)], colour.filled())])?;
                let middle = f64::midpoint(top, bottom);
                chart.draw_series([PathElement::new([(low, middle), (high, middle)], LIMIT)])?;
                let edges = [(1.0, f64::from(place)), (1.0, f64::from(place) + 1.0)];
                chart.draw_series([PathElement::new(edges, LIMIT.stroke_width(2))])?;
                let goal = goal.map(|goal| {
                    PathElement::new([(goal, top - 0.1), (goal, bottom + 0.1)], GOAL.stroke_width(3))
                });
                chart.draw_series(goal)?;
                root.draw(&Text::new(*name, (26, y), text(12)))?;
                let figure = format!("{:.2}", speed.median);
                root.draw(&Text::new(figure, ((WIDTH - FIGURES + 10) as i32, y), text(12)))?;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// The meaning of the colours.
fn legend(root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), Box<dyn Error>> {
    let words = [
        (OURS, "tokio-rdma"),
        (OTHERS, "others"),
        (LIMIT, "the first contender, whose speed is 1; thin: quartiles"),
        (GOAL, "goal"),
    ];
    for ((colour, word), x) in words.into_iter().zip([10, 110, 190, 530]) {
        root.draw(&Rectangle::new([(x, 40), (x + 12, 50)], colour.filled()))?;
        root.draw(&Text::new(word, (x + 18, 39), ("sans-serif", 12).into_text_style(root)))?;
    }
    Ok(())
}

/// Round trips and rates with more and more connections.
///
/// # Errors
/// Those of the file system.
pub(crate) fn curves(curves: &[Curve], file: &Path) -> io::Result<()> {
    draw_curves(curves, file).map_err(|error| io::Error::other(error.to_string()))
}

fn draw_curves(curves: &[Curve], file: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(file, (WIDTH, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(WIDTH / 2);
    let ratio = |curve: &Curve| -> Vec<(f64, f64)> {
        let points = curve.steps.iter().filter_map(|step| Some((step.open as f64, step.ratio()?.median)));
        points.collect()
    };
    panel(&left, "64 B round trip, to that with one connection", curves, ratio)?;
    let rate = |curve: &Curve| -> Vec<(f64, f64)> {
        curve.steps.iter().skip(1).map(|step| (step.open as f64, step.rate)).collect()
    };
    panel(&right, "connections made, 1000/s", curves, rate)?;
    root.present()?;
    Ok(())
}

/// One panel: a line for each contender over the number of open connections.
fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    curves: &[Curve],
    points: impl Fn(&Curve) -> Vec<(f64, f64)>,
) -> Result<(), Box<dyn Error>> {
    // The others are weighed only.
    let counted = curves.iter().filter(|curve| !curve.steps.is_empty());
    let all: Vec<_> = counted.map(|curve| (curve.name, points(curve))).collect();
    let most = |pick: fn(&(f64, f64)) -> f64| {
        all.iter().flat_map(|(_, points)| points.iter().map(pick)).fold(1.0, f64::max)
    };
    let (width, height) = (most(|point| point.0), most(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 16))
        .x_label_area_size(40)
        .y_label_area_size(50)
        .margin(10)
        .build_cartesian_2d((1.0..width * 1.1).log_scale(), 0.0..height * 1.2)?;
    chart.configure_mesh().x_desc("connections open").draw()?;
    for (place, (name, points)) in all.into_iter().enumerate() {
        let colour = if place == 0 { OURS } else { OTHERS };
        let marks = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
        chart.draw_series(marks)?;
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().border_style(LIMIT).position(SeriesLabelPosition::LowerRight).draw()?;
    Ok(())
}
