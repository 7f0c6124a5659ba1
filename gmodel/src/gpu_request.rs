//! What a job asks of GPUs: `4`, `h100:4|a100:8`, `0.5`, `1g.10gb:2`, `gpu:h100:4`. Owns the grammar of
//! `--gpus`, `--gpus-per-node`, `--gpus-per-task`, `--gres` and `--gpu-mem`; never knows which GPUs there are.
//! Source: sbatch(1) for Slurm's forms; MIG profiles are named as NVIDIA names them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::size::{self, SizeError};

/// Most GPUs, MIG instances or shares one alternative may ask for.
pub const MAX_COUNT: u32 = 100_000;
/// Most ranked alternatives of one request.
pub const MAX_ALTERNATIVES: usize = 8;
/// Longest name of a GPU type or MIG profile.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest text of a request.
const MAX_TEXT_BYTES: usize = 1024;
/// A share counts in thousandths of one GPU.
pub const MILLI_PER_GPU: u32 = 1000;

/// The alternatives in the order in which they are liked; the first that can be had is taken. No alternative
/// means no GPU (`--gpus 0`). Written as the user writes it, stored as the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuRequest {
    pub alternatives: Vec<GpuAlternative>,
}

/// One kind and amount of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuAlternative {
    pub kind: GpuKind,
    pub amount: GpuAmount,
}

/// Which GPUs will do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuKind {
    Any,
    /// This type only, in lower case: `h100`.
    Type(String),
}

/// How much, for what the option counts per (job, node or task).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuAmount {
    /// Whole GPUs, 1 to [`MAX_COUNT`].
    Whole(u32),
    /// A share of one GPU, 1 to 999 thousandths.
    Share { milli: u32 },
    /// MIG instances of a profile such as `1g.10gb`, 1 to [`MAX_COUNT`].
    Mig { profile: String, count: u32 },
}

impl GpuRequest {
    /// So many whole GPUs of any type; none for 0.
    pub fn whole(count: u32) -> Self {
        let amount = GpuAmount::Whole(count);
        let alternatives = if count == 0 {
            vec![]
        } else {
            vec![GpuAlternative {
                kind: GpuKind::Any,
                amount,
            }]
        };
        Self { alternatives }
    }

    /// Reads the value of `--gpus`, `--gpus-per-node`, `--gpus-per-task`: alternatives with `|` between them,
    /// each `4`, `h100:4`, `h100`, `0.5`, `h100:0.5`, `1g.10gb:2` or `h100:1g.10gb:2`.
    pub fn parse(text: &str) -> Result<Self, GpuRequestError> {
        let text = text.trim();
        check_text(text)?;
        if text.contains(',') {
            return Err(GpuRequestError::Comma {
                text: shorten(text),
            });
        }
        let mut alternatives: Vec<GpuAlternative> = Vec::new();
        let parts: Vec<&str> = text.split('|').map(str::trim).collect();
        for part in &parts {
            match GpuAlternative::parse(part)? {
                Some(alternative) if alternatives.contains(&alternative) => {}
                Some(alternative) => alternatives.push(alternative),
                None if parts.len() == 1 => return Ok(Self::default()),
                None => {
                    return Err(GpuRequestError::ZeroAlternative {
                        text: shorten(text),
                    });
                }
            }
        }
        if alternatives.len() > MAX_ALTERNATIVES {
            return Err(GpuRequestError::TooManyAlternatives {
                alternatives: alternatives.len(),
            });
        }
        Ok(Self { alternatives })
    }

    /// Reads the value of `--gres`, which counts per node: `gpu`, `gpu:4`, `gpu:h100:4`, `gres/gpu:h100=4`, `none`;
    /// after `gpu:` all that [`GpuRequest::parse`] reads.
    pub fn parse_gres(text: &str) -> Result<Self, GpuRequestError> {
        let text = text.trim();
        check_text(text)?;
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::default());
        }
        let mut gpus: Option<Self> = None;
        for item in text.split(',').map(str::trim) {
            let bare = item
                .strip_prefix("gres/")
                .or_else(|| item.strip_prefix("gres:"))
                .unwrap_or(item);
            let (name, rest) = match bare.find([':', '=']) {
                Some(cut) => (&bare[..cut], Some(&bare[cut + 1..])),
                None => (bare, None),
            };
            // TRES write the count behind `=`, where options write `:`.
            let rest = rest.unwrap_or("1").replacen('=', ":", 1);
            let ask = match name.to_ascii_lowercase().as_str() {
                "gpu" => Self::parse(&rest)?,
                "mps" => Self::parse(&of_percent(&rest)?)?,
                "shard" => return Err(GpuRequestError::Shard),
                _ => {
                    return Err(GpuRequestError::OtherGres {
                        name: shorten(name),
                    });
                }
            };
            if gpus.replace(ask).is_some() {
                return Err(GpuRequestError::Comma {
                    text: shorten(text),
                });
            }
        }
        gpus.ok_or(GpuRequestError::Empty)
    }

    /// True if no GPU is asked for.
    pub fn is_none(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// The alternative liked best.
    pub fn first(&self) -> Option<&GpuAlternative> {
        self.alternatives.first()
    }
}

/// `h100:50`, percent of a GPU as Slurm's mps counts it, as `h100:0.5`.
fn of_percent(text: &str) -> Result<String, GpuRequestError> {
    let (kind, percent) = text
        .rsplit_once(':')
        .map_or((String::new(), text), |(kind, percent)| {
            (format!("{kind}:"), percent)
        });
    match percent.parse::<u32>() {
        Ok(100) => Ok(format!("{kind}1")),
        Ok(part @ 1..100) => Ok(format!("{kind}0.{part:02}")),
        _ => Err(GpuRequestError::Percent {
            text: shorten(text),
        }),
    }
}

impl GpuAlternative {
    /// None for a count of 0.
    fn parse(part: &str) -> Result<Option<Self>, GpuRequestError> {
        if part.is_empty() {
            return Err(GpuRequestError::Empty);
        }
        let lower = part.to_ascii_lowercase();
        let form = || GpuRequestError::Form {
            part: shorten(part),
        };
        let fields: Vec<&str> = lower.split(':').map(str::trim).collect();
        let (name, profile, count) = match *fields.as_slice() {
            [count] if starts_as_number(count) && !is_mig_profile(count) => ("", "", count),
            [name] => (name, "", "1"),
            [name, profile] if is_mig_profile(profile) => (name, profile, "1"),
            [name, count] => (name, "", count),
            [name, profile, count] if is_mig_profile(profile) => (name, profile, count),
            _ => return Err(form()),
        };
        // `1g.10gb:2` has no type; Slurm's own discovery writes `a100_1g.10gb`.
        let (name, profile) = match name.rsplit_once('_') {
            _ if profile.is_empty() && is_mig_profile(name) => ("", name),
            Some((kind, cut)) if profile.is_empty() && is_mig_profile(cut) => (kind, cut),
            _ => (name, profile),
        };
        let bare = fields.len() == 1 && name.is_empty() && profile.is_empty();
        let kind = match name {
            "" if bare || !profile.is_empty() => GpuKind::Any,
            name if is_type_name(name) => GpuKind::Type(name.to_owned()),
            _ => return Err(form()),
        };
        let count = WrittenCount::parse(count).ok_or_else(form)?.checked(part)?;
        Ok(match (count, profile) {
            (WrittenCount::Whole(0), _) => None,
            (WrittenCount::Whole(count), "") => Some(Self {
                kind,
                amount: GpuAmount::Whole(count as u32),
            }),
            (WrittenCount::Whole(count), profile) => Some(Self {
                kind,
                amount: GpuAmount::Mig {
                    profile: profile.to_owned(),
                    count: count as u32,
                },
            }),
            (WrittenCount::Milli(milli), "") => Some(Self {
                kind,
                amount: GpuAmount::Share {
                    milli: milli as u32,
                },
            }),
            (WrittenCount::Milli(_), _) => {
                return Err(GpuRequestError::ShareOfMig {
                    part: shorten(part),
                });
            }
        })
    }
}

impl FromStr for GpuRequest {
    type Err = GpuRequestError;
    fn from_str(text: &str) -> Result<Self, GpuRequestError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for GpuRequest {
    type Error = GpuRequestError;
    fn try_from(text: String) -> Result<Self, GpuRequestError> {
        Self::parse(&text)
    }
}

impl From<GpuRequest> for String {
    fn from(ask: GpuRequest) -> String {
        ask.to_string()
    }
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, alternative) in self.alternatives.iter().enumerate() {
            let bar = if i == 0 { "" } else { "|" };
            write!(f, "{bar}{alternative}")?;
        }
        if self.is_none() {
            f.write_str("0")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for GpuAlternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let GpuKind::Type(name) = &self.kind {
            write!(f, "{name}:")?;
        }
        write!(f, "{}", self.amount)
    }
}

impl fmt::Display for GpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(count) => write!(f, "{count}"),
            Self::Share { milli } => f.write_str(format!("0.{milli:03}").trim_end_matches('0')),
            Self::Mig { profile, count } => write!(f, "{profile}:{count}"),
        }
    }
}

/// What is wrong with a request for GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GpuRequestError {
    #[error("the request for GPUs is empty. Try 4, h100:4 or 1g.10gb:2")]
    Empty,
    #[error(
        "{part:?} is no request for GPUs. Try 4, h100:4 or 1g.10gb:2, and | between alternatives"
    )]
    Form { part: String },
    #[error(
        "{text:?} asks for several kinds of GPUs together; a job holds one kind. Write h100:4|a100:8 for whichever is free first"
    )]
    Comma { text: String },
    #[error("{text:?} has an alternative of 0 GPUs. Leave it out")]
    ZeroAlternative { text: String },
    #[error(
        "{alternatives} alternatives of GPUs are asked for and {MAX_ALTERNATIVES} are the most. Leave some out"
    )]
    TooManyAlternatives { alternatives: usize },
    #[error("{part:?} asks for more than {MAX_COUNT} GPUs. Use a smaller number")]
    TooMany { part: String },
    #[error(
        "{part:?} asks for one and a part of another GPU; a share is a part of one. Try {below} or {above}"
    )]
    ShareAboveOne {
        part: String,
        below: u64,
        above: u64,
    },
    #[error(
        "{part:?} is finer than a thousandth of a GPU. Use up to three digits after the point, as in 0.125"
    )]
    TooFine { part: String },
    #[error(
        "{part:?} asks for a part of a MIG instance, which cannot be divided. Ask for whole ones, as in 1g.10gb:2"
    )]
    ShareOfMig { part: String },
    #[error(
        "--gres {name:?} is not known here: GPUs are the only generic resource. Use gpu:4 or gpu:h100:4"
    )]
    OtherGres { name: String },
    #[error(
        "--gres mps:{text} is no part of a GPU: mps:50 is half of one, mps:h100:25 a quarter of an H100"
    )]
    Percent { text: String },
    #[error(
        "--gres shard is not known here: ask for the part of a GPU, --gpus 0.25 or --gpus h100:0.25"
    )]
    Shard,
    #[error(
        "the request for GPUs has {bytes} bytes and {MAX_TEXT_BYTES} are the most. Use fewer alternatives"
    )]
    TextTooLong { bytes: usize },
    #[error("--gpu-mem: {0}")]
    GpuMem(SizeError),
    #[error("--gpu-mem 0 asks for GPUs without memory. Leave it out for any GPU, or try 40G")]
    ZeroGpuMem,
}

/// Bytes of `--gpu-mem 40G`, at least 1; a bare number is MiB.
pub fn parse_gpu_mem(text: &str) -> Result<u64, GpuRequestError> {
    match size::parse_bytes(text).map_err(GpuRequestError::GpuMem)? {
        0 => Err(GpuRequestError::ZeroGpuMem),
        bytes => Ok(bytes),
    }
}

/// True for the name of a MIG profile: `1g.10gb`, `2g.20gb`, `1c.3g.40gb`, `1g.10gb+me`; lower case.
pub fn is_mig_profile(name: &str) -> bool {
    let (shape, attributes) = name.split_at(name.find(['+', '-']).unwrap_or(name.len()));
    let counted = |field: &str, unit: &str| {
        field.strip_suffix(unit).is_some_and(|digits| {
            (1..=4).contains(&digits.len())
                && digits.bytes().all(|b| b.is_ascii_digit())
                && !digits.starts_with('0')
        })
    };
    let fields: Vec<&str> = shape.split('.').collect();
    let shaped = match *fields.as_slice() {
        [slices, memory] => counted(slices, "g") && counted(memory, "gb"),
        [compute, slices, memory] => {
            counted(compute, "c") && counted(slices, "g") && counted(memory, "gb")
        }
        _ => false,
    };
    let mut attribute_names = attributes.split(['+', '-']).skip(1);
    let named = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.')
    };
    name.len() <= MAX_NAME_BYTES && shaped && attribute_names.all(named)
}

/// A type's name: letters, digits, `_`, `-`, `.`, a letter or digit first, lower case.
fn is_type_name(name: &str) -> bool {
    let inner =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'.');
    name.len() <= MAX_NAME_BYTES
        && name.bytes().all(inner)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !is_mig_profile(name)
        && !name
            .rsplit_once('_')
            .is_some_and(|(_, cut)| is_mig_profile(cut))
}

fn starts_as_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// A count as written.
enum WrittenCount {
    Whole(u64),
    /// Thousandths; not a multiple of 1000.
    Milli(u64),
}

/// The digits after a point are not more than this in any text that is taken.
const MAX_DECIMALS: usize = 3;

impl WrittenCount {
    fn parse(text: &str) -> Option<Self> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let Some((whole, decimals)) = text.split_once('.') else {
            return digits(text).then(|| Self::Whole(text.parse().unwrap_or(u64::MAX)));
        };
        let whole = if whole.is_empty() { "0" } else { whole };
        if !digits(whole) || !digits(decimals) {
            return None;
        }
        let whole: u64 = whole.parse().unwrap_or(u64::MAX / 10_000);
        let decimals = decimals.trim_end_matches('0');
        match decimals.len() {
            0 => Some(Self::Whole(whole)),
            // Kept as something that `checked` refuses: a fraction that thousandths do not hold.
            length if length > MAX_DECIMALS => Some(Self::Milli(0)),
            _ => {
                let milli: u64 = format!("{decimals:0<3}").parse().ok()?;
                Some(Self::Milli(
                    whole.min(u64::MAX / 10_000) * u64::from(MILLI_PER_GPU) + milli,
                ))
            }
        }
    }

    fn checked(self, part: &str) -> Result<Self, GpuRequestError> {
        match self {
            Self::Whole(count) if count > u64::from(MAX_COUNT) => Err(GpuRequestError::TooMany {
                part: shorten(part),
            }),
            Self::Milli(0) => Err(GpuRequestError::TooFine {
                part: shorten(part),
            }),
            Self::Milli(milli) if milli > u64::from(MILLI_PER_GPU) => {
                let below = milli / u64::from(MILLI_PER_GPU);
                Err(GpuRequestError::ShareAboveOne {
                    part: shorten(part),
                    below,
                    above: below + 1,
                })
            }
            count => Ok(count),
        }
    }
}

fn check_text(text: &str) -> Result<(), GpuRequestError> {
    match text.len() {
        0 => Err(GpuRequestError::Empty),
        bytes if bytes > MAX_TEXT_BYTES => Err(GpuRequestError::TextTooLong { bytes }),
        _ => Ok(()),
    }
}

/// At most 60 characters of a text, for messages.
fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn shown(ask: Result<GpuRequest, GpuRequestError>) -> String {
        match ask {
            Ok(ask) => format!("{ask} {:?}", ask.alternatives),
            Err(error) => format!("error: {error}"),
        }
    }

    fn gpus(text: &str, want: Expect) {
        want.assert_eq(&shown(GpuRequest::parse(text)));
    }

    fn gres(text: &str, want: Expect) {
        want.assert_eq(&shown(GpuRequest::parse_gres(text)));
    }

    #[test]
    fn reads_counts_types_and_ranked_alternatives() {
        gpus(
            "4",
            expect!["4 [GpuAlternative { kind: Any, amount: Whole(4) }]"],
        );
        gpus(
            "h100:4",
            expect![[r#"h100:4 [GpuAlternative { kind: Type("h100"), amount: Whole(4) }]"#]],
        );
        gpus(
            "H100",
            expect![[r#"h100:1 [GpuAlternative { kind: Type("h100"), amount: Whole(1) }]"#]],
        );
        gpus(
            "h100:4|a100:8",
            expect![[
                r#"h100:4|a100:8 [GpuAlternative { kind: Type("h100"), amount: Whole(4) }, GpuAlternative { kind: Type("a100"), amount: Whole(8) }]"#
            ]],
        );
        gpus(
            "4090:2 | 4 | 4",
            expect![[
                r#"4090:2|4 [GpuAlternative { kind: Type("4090"), amount: Whole(2) }, GpuAlternative { kind: Any, amount: Whole(4) }]"#
            ]],
        );
        gpus("0", expect!["0 []"]);
    }

    #[test]
    fn reads_shares_and_mig_instances() {
        gpus(
            "0.5",
            expect!["0.5 [GpuAlternative { kind: Any, amount: Share { milli: 500 } }]"],
        );
        gpus(
            "h100:.125",
            expect![[
                r#"h100:0.125 [GpuAlternative { kind: Type("h100"), amount: Share { milli: 125 } }]"#
            ]],
        );
        gpus(
            "2.0",
            expect!["2 [GpuAlternative { kind: Any, amount: Whole(2) }]"],
        );
        gpus(
            "1g.10gb:2",
            expect![[
                r#"1g.10gb:2 [GpuAlternative { kind: Any, amount: Mig { profile: "1g.10gb", count: 2 } }]"#
            ]],
        );
        gpus(
            "2g.20gb",
            expect![[
                r#"2g.20gb:1 [GpuAlternative { kind: Any, amount: Mig { profile: "2g.20gb", count: 1 } }]"#
            ]],
        );
        gpus(
            "h100:1g.10gb+me:1",
            expect![[
                r#"h100:1g.10gb+me:1 [GpuAlternative { kind: Type("h100"), amount: Mig { profile: "1g.10gb+me", count: 1 } }]"#
            ]],
        );
        gpus(
            "a100_1g.5gb:3",
            expect![[
                r#"a100:1g.5gb:3 [GpuAlternative { kind: Type("a100"), amount: Mig { profile: "1g.5gb", count: 3 } }]"#
            ]],
        );
    }

    #[test]
    fn reads_slurms_gres() {
        gres(
            "gpu",
            expect!["1 [GpuAlternative { kind: Any, amount: Whole(1) }]"],
        );
        gres(
            "gpu:4",
            expect!["4 [GpuAlternative { kind: Any, amount: Whole(4) }]"],
        );
        gres(
            "gpu:h100:4",
            expect![[r#"h100:4 [GpuAlternative { kind: Type("h100"), amount: Whole(4) }]"#]],
        );
        gres(
            "gpu:h100",
            expect![[r#"h100:1 [GpuAlternative { kind: Type("h100"), amount: Whole(1) }]"#]],
        );
        gres(
            "gres/gpu:2",
            expect!["2 [GpuAlternative { kind: Any, amount: Whole(2) }]"],
        );
        gres(
            "gres/gpu:a100=2",
            expect![[r#"a100:2 [GpuAlternative { kind: Type("a100"), amount: Whole(2) }]"#]],
        );
        gres(
            "gres:gpu=2",
            expect!["2 [GpuAlternative { kind: Any, amount: Whole(2) }]"],
        );
        gres(
            "gpu:1g.10gb:1",
            expect![[
                r#"1g.10gb:1 [GpuAlternative { kind: Any, amount: Mig { profile: "1g.10gb", count: 1 } }]"#
            ]],
        );
        gres(
            "mps:50",
            expect!["0.5 [GpuAlternative { kind: Any, amount: Share { milli: 500 } }]"],
        );
        gres(
            "gres/mps:h100=25",
            expect![[
                r#"h100:0.25 [GpuAlternative { kind: Type("h100"), amount: Share { milli: 250 } }]"#
            ]],
        );
        gres(
            "mps:100",
            expect!["1 [GpuAlternative { kind: Any, amount: Whole(1) }]"],
        );
        gres(
            "mps:150",
            expect![
                "error: --gres mps:150 is no part of a GPU: mps:50 is half of one, mps:h100:25 a quarter of an H100"
            ],
        );
        gres(
            "shard:1",
            expect![
                "error: --gres shard is not known here: ask for the part of a GPU, --gpus 0.25 or --gpus h100:0.25"
            ],
        );
        gres("none", expect!["0 []"]);
        gres("gpu:0", expect!["0 []"]);
    }

    #[test]
    fn errors_say_what_would_work() {
        gpus(
            "",
            expect!["error: the request for GPUs is empty. Try 4, h100:4 or 1g.10gb:2"],
        );
        gpus(
            "h100:x",
            expect![[
                r#"error: "h100:x" is no request for GPUs. Try 4, h100:4 or 1g.10gb:2, and | between alternatives"#
            ]],
        );
        gpus(
            ":4",
            expect![[
                r#"error: ":4" is no request for GPUs. Try 4, h100:4 or 1g.10gb:2, and | between alternatives"#
            ]],
        );
        gpus(
            "-4",
            expect![[
                r#"error: "-4" is no request for GPUs. Try 4, h100:4 or 1g.10gb:2, and | between alternatives"#
            ]],
        );
        gpus(
            "h100:2,a100:1",
            expect![[
                r#"error: "h100:2,a100:1" asks for several kinds of GPUs together; a job holds one kind. Write h100:4|a100:8 for whichever is free first"#
            ]],
        );
        gpus(
            "1.5",
            expect![[
                r#"error: "1.5" asks for one and a part of another GPU; a share is a part of one. Try 1 or 2"#
            ]],
        );
        gpus(
            "0.0001",
            expect![[
                r#"error: "0.0001" is finer than a thousandth of a GPU. Use up to three digits after the point, as in 0.125"#
            ]],
        );
        gpus(
            "1g.10gb:0.5",
            expect![[
                r#"error: "1g.10gb:0.5" asks for a part of a MIG instance, which cannot be divided. Ask for whole ones, as in 1g.10gb:2"#
            ]],
        );
        gpus(
            "99999999999999999999",
            expect![[
                r#"error: "99999999999999999999" asks for more than 100000 GPUs. Use a smaller number"#
            ]],
        );
        gpus(
            "h100:0|4",
            expect![[r#"error: "h100:0|4" has an alternative of 0 GPUs. Leave it out"#]],
        );
        gpus(
            "1|2|3|4|5|6|7|8|9",
            expect![
                "error: 9 alternatives of GPUs are asked for and 8 are the most. Leave some out"
            ],
        );
        gres(
            "fpga:1",
            expect![[
                r#"error: --gres "fpga" is not known here: GPUs are the only generic resource. Use gpu:4 or gpu:h100:4"#
            ]],
        );
        gres(
            "gpu:1,shard:2",
            expect![
                "error: --gres shard is not known here: ask for the part of a GPU, --gpus 0.25 or --gpus h100:0.25"
            ],
        );
        gres(
            "gpu:h100:1,gpu:a100:1",
            expect![[
                r#"error: "gpu:h100:1,gpu:a100:1" asks for several kinds of GPUs together; a job holds one kind. Write h100:4|a100:8 for whichever is free first"#
            ]],
        );
    }

    #[test]
    fn gpu_memory_is_a_size_above_zero() {
        assert_eq!(parse_gpu_mem("40G"), Ok(40 << 30));
        assert_eq!(
            parse_gpu_mem("0").unwrap_err().to_string(),
            "--gpu-mem 0 asks for GPUs without memory. Leave it out for any GPU, or try 40G"
        );
        assert_eq!(
            parse_gpu_mem("big").unwrap_err().to_string(),
            r#"--gpu-mem: size "big" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G"#
        );
    }

    fn any_alternative() -> impl Strategy<Value = GpuAlternative> {
        let kind = prop_oneof![
            Just(GpuKind::Any),
            "[a-z][a-z0-9-]{0,8}".prop_map(GpuKind::Type)
        ];
        let amount = prop_oneof![
            (1..=MAX_COUNT).prop_map(GpuAmount::Whole),
            (1..MILLI_PER_GPU).prop_map(|milli| GpuAmount::Share { milli }),
            ("[1-7]g\\.[1-9]0gb(\\+me)?", 1..=MAX_COUNT)
                .prop_map(|(profile, count)| GpuAmount::Mig { profile, count }),
        ];
        (kind, amount).prop_map(|(kind, amount)| GpuAlternative { kind, amount })
    }

    proptest! {
        #[test]
        fn printed_requests_read_back(set in prop::collection::btree_set(any_alternative(), 0..=MAX_ALTERNATIVES)) {
            let ask = GpuRequest { alternatives: set.into_iter().collect() };
            prop_assert_eq!(GpuRequest::parse(&ask.to_string()), Ok(ask.clone()));
            prop_assert_eq!(GpuRequest::parse_gres(&format!("gpu:{ask}")), Ok(ask.clone()));
            let json = serde_json::to_string(&ask).unwrap();
            prop_assert_eq!(serde_json::from_str::<GpuRequest>(&json).unwrap(), ask);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[0-9a-cgb.:|,_+=-]{0,24}") {
            if let Ok(ask) = GpuRequest::parse(&text) {
                prop_assert_eq!(GpuRequest::parse(&ask.to_string()), Ok(ask));
            }
            let _ = (GpuRequest::parse_gres(&text), parse_gpu_mem(&text));
        }
    }
}
