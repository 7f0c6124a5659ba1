//! Sizes of memory in options and listings: bare numbers are MiB, `K M G T` are binary, as in Slurm.
//! Owns reading and printing; sizes are bytes in a `u64` everywhere else. Never knows what a node has.

use thiserror::Error;

/// Largest size that is taken: 1 PiB, in bytes.
pub const MAX_BYTES: u64 = 1 << 50;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNITS: [(u64, &str); 4] = [(1 << 40, "T"), (1 << 30, "G"), (MIB, "M"), (KIB, "K")];

/// What is wrong with a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    #[error("size {text:?} is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G")]
    Form { text: String },
    #[error("size {text:?} has a fraction. Use the next smaller unit, as in 1536M for 1.5G")]
    Fraction { text: String },
    #[error("size {text:?} is more than 1024T. Use a smaller one")]
    TooLarge { text: String },
}

/// Bytes of a size, 0 to [`MAX_BYTES`]: a bare number is MiB; `K`, `M`, `G`, `T` (also `KB`, `KiB`, in either case) are binary.
/// What 0 means is the option's own: all memory of the node for `--mem`.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let shortened = || text.chars().take(40).collect::<String>();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = text.split_at(digits);
    if count.is_empty() {
        return Err(SizeError::Form { text: shortened() });
    }
    if unit.starts_with('.') {
        return Err(SizeError::Fraction { text: shortened() });
    }
    let unit_bytes = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => KIB,
        "" | "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(SizeError::Form { text: shortened() }),
    };
    let bytes = count
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit_bytes));
    bytes
        .filter(|&bytes| bytes <= MAX_BYTES)
        .ok_or_else(|| SizeError::TooLarge { text: shortened() })
}

/// A size in the largest unit that divides it, as Slurm prints requests: `100M`, `4G`, `9900M`.
/// Sizes that are no multiple of 1 KiB are rounded up to one; `0` has no unit.
pub fn exact_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let bytes = bytes.div_ceil(KIB).saturating_mul(KIB);
    let (unit_bytes, unit) = UNITS
        .iter()
        .find(|(unit_bytes, _)| bytes.is_multiple_of(*unit_bytes))
        .unwrap_or(&UNITS[3]);
    format!("{}{unit}", bytes / unit_bytes)
}

/// A size to read at a glance, in the largest unit with a whole part, one digit after the point where
/// the number is below 100: `79.6G`, `512M`, `0`. Rounded to nearest.
pub fn rough_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let (unit_bytes, unit) = UNITS
        .iter()
        .find(|(unit_bytes, _)| bytes >= *unit_bytes)
        .unwrap_or(&UNITS[3]);
    let tenths = (u128::from(bytes) * 10 + u128::from(unit_bytes / 2)) / u128::from(*unit_bytes);
    match (tenths / 10, tenths % 10) {
        (0, 0) => "0".to_owned(),
        (whole, 0) => format!("{whole}{unit}"),
        (whole, _) if whole >= 100 => format!("{}{unit}", (tenths + 5) / 10),
        (whole, tenth) => format!("{whole}.{tenth}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match parse_bytes(text) {
            Ok(bytes) => format!("{bytes} {}", exact_size(bytes)),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn bare_numbers_are_mib_and_units_are_binary() {
        check("256", expect!["268435456 256M"]);
        check("300M", expect!["314572800 300M"]);
        check("4G", expect!["4294967296 4G"]);
        check("4096", expect!["4294967296 4G"]);
        check("9900m", expect!["10380902400 9900M"]);
        check("1T", expect!["1099511627776 1T"]);
        check("512KiB", expect!["524288 512K"]);
        check("0", expect!["0 0"]);
    }

    #[test]
    fn bad_sizes_are_refused_with_what_would_work() {
        check(
            "",
            expect![[
                r#"error: size "" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G"#
            ]],
        );
        check(
            "4X",
            expect![[
                r#"error: size "4X" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G"#
            ]],
        );
        check(
            "-1",
            expect![[
                r#"error: size "-1" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G"#
            ]],
        );
        check(
            "1.5G",
            expect![[
                r#"error: size "1.5G" has a fraction. Use the next smaller unit, as in 1536M for 1.5G"#
            ]],
        );
        check(
            "99999T",
            expect![[r#"error: size "99999T" is more than 1024T. Use a smaller one"#]],
        );
        check(
            "99999999999999999999999",
            expect![[
                r#"error: size "99999999999999999999999" is more than 1024T. Use a smaller one"#
            ]],
        );
    }

    #[test]
    fn rough_sizes_read_at_a_glance() {
        assert_eq!(rough_size(85_520_809_984), "79.6G");
        assert_eq!(rough_size(1 << 30), "1G");
        assert_eq!(rough_size(300 << 20), "300M");
        assert_eq!(
            (rough_size(700), rough_size(52), rough_size(50)),
            ("0.7K".into(), "0.1K".into(), "0".into())
        );
        assert_eq!(rough_size(u64::MAX), "16777216T");
        assert_eq!(exact_size(700), "1K");
        assert_eq!(exact_size(u64::MAX).len(), 18);
    }

    proptest! {
        #[test]
        fn printed_sizes_read_back(kib in 1..=MAX_BYTES / KIB) {
            prop_assert_eq!(parse_bytes(&exact_size(kib * KIB)), Ok(kib * KIB));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}|[0-9]{0,25}[kmgtKMGTib.]{0,3}") {
            let _ = parse_bytes(&text);
        }

        #[test]
        fn any_size_prints(bytes: u64) {
            let _ = (exact_size(bytes), rough_size(bytes));
        }
    }
}
