//! The charts, as SVG.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::prelude::*;

use crate::race::Outcome;
use crate::scale::Curve;

/// A bar of the first chart: what, who, the ratio with its quartiles, and whether it is ours.
struct Bar {
    label: String,
    values: [f64; 3],
    colour: RGBColor,
}

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OTHERS: RGBColor = RGBColor(0xa8, 0xa8, 0xa8);
const LIMIT: RGBColor = RGBColor(0x40, 0x40, 0x40);
/// The height of a bar, and of the space around all of them.
const HEIGHT: u32 = 18;
const MARGIN: u32 = 80;
const WIDTH: u32 = 1000;
const LABELS: u32 = 430;
/// What is longer is cut.
const LONGEST: f64 = 5.0;

/// The ratios of all contenders to raw TCP.
///
/// # Errors
/// What the file system says.
pub(crate) fn ratios(races: &[Outcome], file: &Path) -> io::Result<()> {
    let mut bars = Vec::new();
    for race in races {
        for result in race.results.iter().skip(1) {
            let Some(ratio) = race.ratio(result) else { continue };
            let label = format!("{}: {}", race.line.id, result.contender.name);
            let colour = if result.contender.is_ours() { OURS } else { OTHERS };
            bars.push(Bar { label, values: [ratio.low, ratio.median, ratio.high], colour });
        }
    }
    draw_ratios(&bars, file).map_err(|error| io::Error::other(error.to_string()))
}

fn draw_ratios(bars: &[Bar], file: &Path) -> Result<(), Box<dyn Error>> {
    let count = u32::try_from(bars.len())?;
    let root = SVGBackend::new(file, (WIDTH, count * HEIGHT + MARGIN)).into_drawing_area();
    root.fill(&WHITE)?;
    let longest = bars.iter().map(|bar| bar.values[2]).fold(1.0, f64::max).min(LONGEST);
    let mut chart = ChartBuilder::on(&root)
        .caption("ratio to raw tokio TCP in the same turn", ("sans-serif", 18))
        .x_label_area_size(30)
        .y_label_area_size(LABELS)
        .margin(10)
        .build_cartesian_2d(0.0..longest * 1.05, f64::from(count)..0.0)?;
    // The labels of the bars are drawn by hand: those of an axis stand at its ticks, not between them.
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc("(less is better for round trips, more for the rest)")
        .draw()?;
    for (place, bar) in (0_u32..).zip(bars) {
        let (top, bottom) = (f64::from(place) + 0.15, f64::from(place) + 0.85);
        let [low, median, high] = bar.values.map(|value| value.min(longest));
        chart.draw_series([Rectangle::new([(0.0, top), (median, bottom)], bar.colour.filled())])?;
        let middle = f64::midpoint(top, bottom);
        chart.draw_series([PathElement::new([(low, middle), (high, middle)], LIMIT)])?;
        let (_, y) = chart.backend_coord(&(0.0, top));
        root.draw(&Text::new(bar.label.clone(), (10, y), ("sans-serif", 12)))?;
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, f64::from(count))], LIMIT)])?;
    root.present()?;
    Ok(())
}

/// Round trips and rates with more and more connections.
///
/// # Errors
/// What the file system says.
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
    let all: Vec<_> = curves.iter().map(|curve| (curve.name, points(curve))).collect();
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
