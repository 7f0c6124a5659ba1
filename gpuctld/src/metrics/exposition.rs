//! Prometheus text (format 0.0.4) being written: families, samples, histograms. Knows no metric.

use crate::histogram::HistogramValues;
use std::fmt::Write;

/// What a histogram counted.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    Micros,
    Seconds,
}

/// Prometheus text being written.
#[derive(Default)]
pub(super) struct Exposition {
    pub(super) text: String,
}

impl Exposition {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}."));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        if labels.is_empty() {
            return self.line(format_args!("{name} {value}"));
        }
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
    }

    /// In seconds, buckets cumulated. A bucket holds what is below its bound.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        values: &HistogramValues,
        scale: Scale,
    ) {
        let a_second = match scale {
            Scale::Micros => 1e6,
            Scale::Seconds => 1.0,
        };
        let mut below = 0;
        let last = values.buckets.len().saturating_sub(1);
        for (position, (bound, count)) in values.buckets.iter().enumerate() {
            below += count;
            let bound = if position == last {
                "+Inf".to_owned()
            } else {
                (*bound as f64 / a_second).to_string()
            };
            let with_bound: Vec<(&str, &str)> = labels
                .iter()
                .copied()
                .chain([("le", bound.as_str())])
                .collect();
            self.sample(&format!("{name}_bucket"), &with_bound, below as f64);
        }
        self.sample(&format!("{name}_sum"), labels, values.sum as f64 / a_second);
        self.sample(&format!("{name}_count"), labels, values.count as f64);
    }

    fn line(&mut self, line: std::fmt::Arguments) {
        writeln!(self.text, "{line}").expect("a String takes every write");
    }
}

/// Label values: backslash, quote and newline are escaped.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
