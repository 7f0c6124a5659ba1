//! What sreport counts, CPUs or GPUs, and the units it prints them in.

use gcli::Failure;
use gwire::api::ReportRow;

pub(super) const RULE: &str =
    "--------------------------------------------------------------------------------";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tres {
    Cpu,
    Gpu,
}

impl Tres {
    pub(super) fn hours(self, row: &ReportRow) -> f64 {
        match self {
            Self::Cpu => row.cpu_hours,
            Self::Gpu => row.gpu_hours,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gres/gpu",
        }
    }
}

/// What `--tres` asks for.
#[derive(Debug)]
pub(super) struct TresChoice {
    /// Whether it was asked for, and not CPUs by default.
    pub(super) is_named: bool,
    pub(super) list: Vec<Tres>,
}

impl TresChoice {
    /// `cpu,gres/gpu`; without any CPUs alone, as in sreport.
    pub(super) fn of(named: Option<&str>) -> Result<Self, Failure> {
        let one = |word: &str| match word.to_ascii_lowercase().as_str() {
            "cpu" => Ok(Tres::Cpu),
            "gres/gpu" | "gpu" => Ok(Tres::Gpu),
            lower if lower.starts_with("gres/gpu:") => Err(Failure::usage(format_args!(
                "--tres {word}: gacct report --by account,gpu-type counts types apart"
            ))),
            _ => Err(Failure::usage(format_args!(
                "--tres {word}: cpu and gres/gpu are counted"
            ))),
        };
        let list = named
            .unwrap_or("cpu")
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        Ok(Self {
            is_named: named.is_some(),
            list: list.map(one).collect::<Result<_, _>>()?,
        })
    }
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeUnit {
    pub(super) name: &'static str,
    pub(super) per_hour: f64,
}

/// What times are reported in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) time: Option<TimeUnit>,
    /// Beside it, or alone.
    pub(super) is_percent: bool,
}

impl Unit {
    /// Beginnings are enough where they are clear.
    pub(super) fn of(text: &str) -> Result<Self, Failure> {
        const TIMES: [TimeUnit; 3] = [
            TimeUnit {
                name: "Seconds",
                per_hour: 3600.0,
            },
            TimeUnit {
                name: "Minutes",
                per_hour: 60.0,
            },
            TimeUnit {
                name: "Hours",
                per_hour: 1.0,
            },
        ];
        let lower = text.to_ascii_lowercase();
        let begins =
            |name: &str| !lower.is_empty() && name.to_ascii_lowercase().starts_with(&lower);
        let time = |found: &str| TIMES.into_iter().find(|time| time.name == found);
        match lower.as_str() {
            "secper" => Ok(Self {
                time: time("Seconds"),
                is_percent: true,
            }),
            "minper" => Ok(Self {
                time: time("Minutes"),
                is_percent: true,
            }),
            "hourper" => Ok(Self {
                time: time("Hours"),
                is_percent: true,
            }),
            _ if begins("Percent") => Ok(Self {
                time: None,
                is_percent: true,
            }),
            _ => match TIMES.into_iter().find(|time| begins(time.name)) {
                Some(found) => Ok(Self {
                    time: Some(found),
                    is_percent: false,
                }),
                None => Err(Failure::usage(format_args!(
                    "-t {text}: units are seconds, minutes, hours, percent, secper, minper and hourper"
                ))),
            },
        }
    }

    /// `CPU Minutes/Percentage of Total`.
    pub(super) fn title(self, counted: &str) -> String {
        let time = self.time.map(|time| format!("{counted} {}", time.name));
        time.into_iter()
            .chain(self.is_percent.then(|| "Percentage of Total".to_owned()))
            .collect::<Vec<_>>()
            .join("/")
    }

    /// `17`, `3.10%` or `17(3.10%)` of so many hours out of a whole; of no whole at all it is nothing.
    pub(super) fn text(self, hours: f64, whole: f64) -> String {
        let percent = if whole > 0.0 {
            hours / whole * 100.0
        } else {
            0.0
        };
        match (self.time, self.is_percent) {
            (Some(time), false) => format!("{:.0}", hours * time.per_hour),
            (Some(time), true) => format!("{:.0}({percent:.2}%)", hours * time.per_hour),
            (None, _) => format!("{percent:.2}%"),
        }
    }
}
