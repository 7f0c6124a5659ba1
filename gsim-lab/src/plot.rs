//! Plots as SVG text: use over time, and waits by size of job. Plain lines and bars, no script, no fonts of its own.

use gsim::measures::Measures;
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;
/// Points of a line at most; more are averaged.
const POINTS: usize = 400;
const COLOURS: [&str; 6] = [
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf",
];

/// Values over time, one line for each name. Each line is steps `(time, value)`: the value holds until the next time.
pub struct Series {
    pub name: String,
    pub steps: Vec<(i64, f64)>,
}

/// A plot of several lines over time; times are milliseconds from `begin` to `end`.
pub fn over_time(
    title: &str,
    unit: &str,
    begin: i64,
    end: i64,
    most: f64,
    series: &[Series],
) -> String {
    let end = end.max(begin + 1);
    let most = if most > 0.0 { most } else { 1.0 };
    let mut svg = frame(
        title,
        &series.iter().map(|one| &*one.name).collect::<Vec<_>>(),
    );
    axis_left(&mut svg, unit, most, false);
    let days = (end - begin) as f64 / 86_400_000.0;
    let (scale, name) = if days >= 3.0 {
        (days, "days")
    } else {
        (days * 24.0, "hours")
    };
    for tick in 0..=6 {
        let part = f64::from(tick) / 6.0;
        let x = LEFT + part * (WIDTH - LEFT - RIGHT);
        let _ = write!(
            svg,
            r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            HEIGHT - BOTTOM + 18.0,
            short(part * scale)
        );
    }
    let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
    let _ = write!(
        svg,
        r#"<text x="{middle}" y="{}" text-anchor="middle">{name}</text>"#,
        HEIGHT - 8.0
    );
    for (at, one) in series.iter().enumerate() {
        let points = averaged(&one.steps, begin, end);
        let mut path = String::new();
        for (at, value) in points.iter().enumerate() {
            let x = LEFT + (at as f64 + 0.5) / POINTS as f64 * (WIDTH - LEFT - RIGHT);
            let _ = write!(path, "{x:.1},{:.1} ", y_of(value / most));
        }
        let colour = COLOURS[at % COLOURS.len()];
        let _ = write!(
            svg,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{}"/>"#,
            path.trim_end()
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Mean waits by size of job, a group of bars for each size, on a logarithmic scale.
pub fn waits_by_size(columns: &[Measures]) -> String {
    let mut sizes: Vec<&str> = Vec::new();
    for class in columns.iter().flat_map(|m| &m.by_size) {
        if !sizes.contains(&&*class.size) {
            sizes.push(&class.size);
        }
    }
    let wait = |m: &Measures, size: &str| {
        m.by_size
            .iter()
            .find(|class| class.size == size)
            .map(|c| c.wait_secs.mean)
    };
    let most = columns
        .iter()
        .flat_map(|m| m.by_size.iter().map(|class| class.wait_secs.mean))
        .fold(10.0, f64::max);
    let decades = most.log10().ceil();
    let mut svg = frame(
        "mean wait by size of job",
        &columns.iter().map(|m| &*m.policy).collect::<Vec<_>>(),
    );
    axis_left(&mut svg, "s", decades, true);
    let group = (WIDTH - LEFT - RIGHT) / sizes.len().max(1) as f64;
    let bar = (group * 0.8 / columns.len().max(1) as f64).min(60.0);
    for (at, size) in sizes.iter().enumerate() {
        let x = LEFT + at as f64 * group;
        let middle = x + group / 2.0;
        let _ = write!(
            svg,
            r#"<text x="{middle:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            HEIGHT - BOTTOM + 18.0,
            escaped(size)
        );
        for (column, m) in columns.iter().enumerate() {
            let part = wait(m, size).unwrap_or(0.0).max(1.0).log10() / decades;
            let (top, bottom) = (y_of(part), y_of(0.0));
            let x = middle + (column as f64 - columns.len() as f64 / 2.0) * bar;
            let colour = COLOURS[column % COLOURS.len()];
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
                bar * 0.9,
                bottom - top
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn frame(title: &str, names: &[&str]) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#
    );
    let _ = write!(
        svg,
        r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
    );
    let _ = write!(
        svg,
        r#"<text x="{LEFT}" y="18" font-size="14">{}</text>"#,
        escaped(title)
    );
    for (at, name) in names.iter().enumerate() {
        let x = LEFT + at as f64 * 140.0;
        let colour = COLOURS[at % COLOURS.len()];
        let _ = write!(
            svg,
            r#"<text x="{x}" y="34" fill="{colour}">{}</text>"#,
            escaped(name)
        );
    }
    svg
}

/// The left axis, from 0 to `most`; by powers of ten when `logarithmic`.
fn axis_left(svg: &mut String, unit: &str, most: f64, logarithmic: bool) {
    let ticks = if logarithmic { most as u32 } else { 4 };
    for tick in 0..=ticks {
        let part = f64::from(tick) / f64::from(ticks.max(1));
        let value = if logarithmic {
            10f64.powi(tick as i32)
        } else {
            part * most
        };
        let y = y_of(part);
        let right = WIDTH - RIGHT;
        let _ = write!(
            svg,
            r##"<line x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##
        );
        let _ = write!(
            svg,
            r#"<text x="{}" y="{:.1}" text-anchor="end">{} {}</text>"#,
            LEFT - 6.0,
            y + 4.0,
            short(value),
            escaped(unit)
        );
    }
}

fn y_of(part: f64) -> f64 {
    HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

/// The mean of the steps in each of [`POINTS`] equal parts of the time.
fn averaged(steps: &[(i64, f64)], begin: i64, end: i64) -> Vec<f64> {
    let width = (end - begin) as f64 / POINTS as f64;
    let mut sums = vec![0.0; POINTS];
    for (at, (from, value)) in steps.iter().enumerate() {
        let to = steps.get(at + 1).map_or(end, |(next, _)| *next).min(end);
        let (mut low, high) = (
            (*from).max(begin) as f64 - begin as f64,
            to as f64 - begin as f64,
        );
        while low < high {
            let bin = ((low / width) as usize).min(POINTS - 1);
            let edge = if bin == POINTS - 1 {
                high
            } else {
                ((bin + 1) as f64 * width).min(high)
            };
            sums[bin] += value * (edge - low);
            // An edge that rounding puts where we are already must not hold us for ever.
            low = if edge > low { edge } else { high };
        }
    }
    sums.into_iter().map(|sum| sum / width).collect()
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.0}M", value / 1e6)
    } else if value >= 1e4 {
        format!("{:.0}k", value / 1e3)
    } else if value >= 10.0 || value == value.trunc() {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_averaged_over_equal_times() {
        let points = averaged(&[(0, 4.0), (200, 0.0)], 0, 400);
        assert_eq!(points.len(), POINTS);
        assert!(
            points[..200].iter().all(|v| (v - 4.0).abs() < 1e-9)
                && points[200..].iter().all(|v| *v == 0.0)
        );
        let sum: f64 = averaged(&[(3, 1.0), (7, 2.0)], 0, 1000).iter().sum();
        assert!((sum * 2.5 - (4.0 + 2.0 * 993.0)).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn a_plot_is_whole_and_its_names_are_escaped() {
        let series = [Series {
            name: "a<b".into(),
            steps: vec![(0, 1.0), (10, 3.0)],
        }];
        let svg = over_time("GPUs & CPUs", "GPUs", 0, 20, 4.0, &series);
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
        assert!(
            svg.contains("a&lt;b") && svg.contains("GPUs &amp; CPUs") && svg.contains("<polyline")
        );
        assert!(waits_by_size(&[]).ends_with("</svg>\n"));
    }
}
