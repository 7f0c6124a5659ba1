//! The short name of a GPU's type, from the driver's words for the board. Slurm's own types are such words, too.

/// The short type that requests use: `h100` for `NVIDIA H100 80GB HBM3`. Names of another form become one word: `rtx_a6000`.
pub fn gpu_type_of(name: &str) -> String {
    let mut words: Vec<&str> = name
        .split([' ', '-', '/', '_'])
        .filter(|word| !word.is_empty())
        .collect();
    while words.len() > 1
        && ["nvidia", "tesla", "geforce", "quadro"]
            .iter()
            .any(|brand| words[0].eq_ignore_ascii_case(brand))
    {
        words.remove(0);
    }
    let short = words
        .first()
        .filter(|word| is_model_word(word))
        .map(|word| word.to_lowercase());
    short.unwrap_or_else(|| {
        let letters = |word: &&str| {
            word.chars()
                .filter(char::is_ascii_alphanumeric)
                .collect::<String>()
                .to_lowercase()
        };
        let kept: Vec<String> = words
            .iter()
            .map(letters)
            .filter(|word| !word.is_empty())
            .collect();
        if kept.is_empty() {
            "gpu".to_owned()
        } else {
            kept.join("_")
        }
    })
}

/// `L4`, `A100`, `GH200`, `L40S`: one or two letters, digits, perhaps a letter.
fn is_model_word(word: &str) -> bool {
    let rest = word.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let tail = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    (1..=2).contains(&(word.len() - rest.len()))
        && rest.len() > tail.len()
        && tail.len() <= 1
        && tail.chars().all(|last| last.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_types_are_what_people_write_in_requests() {
        let names = [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("Tesla V100-SXM2-32GB", "v100"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA L4", "l4"),
            ("NVIDIA RTX A6000", "rtx_a6000"),
            ("NVIDIA GeForce RTX 4090", "rtx_4090"),
            ("NVIDIA TITAN Xp (rev. 2)", "titan_xp_rev_2"),
            ("NVIDIA", "nvidia"),
            ("", "gpu"),
            ("nvidia_h100_80gb_hbm3", "h100"),
            ("tesla_v100-sxm2-16gb", "v100"),
        ];
        for (name, short) in names {
            assert_eq!(gpu_type_of(name), short, "{name}");
        }
    }
}
