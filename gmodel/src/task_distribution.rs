//! How the ranks of a step lie on its nodes: `--distribution`, in srun's words. Source: srun(1).

/// The words behind the first `:` and `,` say how tasks lie on sockets and cores, which `--cpu-bind` does here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskDistribution {
    /// Ranks that a node gets before it is the next node's turn; 0: as many as it takes.
    pub plane: u32,
    /// Something was said of sockets or cores.
    pub says_cores: bool,
}

impl TaskDistribution {
    /// Reads `block`, `cyclic`, `plane=4`, `*`, `block:cyclic`, `cyclic,NoPack`.
    ///
    /// # Errors
    /// Other words: what there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (nodes, cores) = match text.split_once([':', ',']) {
            Some((nodes, _)) => (nodes, true),
            None => (text, false),
        };
        let size = nodes
            .strip_prefix("plane=")
            .map(|size| size.parse::<u32>().ok().filter(|size| *size > 0));
        let plane = match (nodes, size) {
            ("block" | "*" | "", _) => 0,
            ("cyclic", _) => 1,
            (_, Some(Some(size))) => size,
            _ => {
                return Err(format!(
                    "{text:?} is not known: block fills one node after the other, cyclic goes round, plane=4 goes round with 4 tasks each"
                ));
            }
        };
        Ok(Self {
            plane,
            says_cores: cores,
        })
    }

    /// The word that says it: `block`, `cyclic`, `plane=4`.
    pub fn word(plane: u32) -> String {
        match plane {
            0 => "block".to_owned(),
            1 => "cyclic".to_owned(),
            size => format!("plane={size}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_srun_are_read() {
        let plane = |text| TaskDistribution::parse(text).map(|how| (how.plane, how.says_cores));
        assert_eq!(plane("block"), Ok((0, false)));
        assert_eq!(plane("*:cyclic"), Ok((0, true)));
        assert_eq!(plane("cyclic,NoPack"), Ok((1, true)));
        assert_eq!(plane("plane=4"), Ok((4, false)));
        for size in [0, 1, 4] {
            let word = TaskDistribution::word(size);
            assert_eq!(
                TaskDistribution::parse(&word).map(|how| how.plane),
                Ok(size)
            );
        }
        for wrong in ["arbitrary", "plane", "plane=0", "plane=x", "cyclc"] {
            assert!(
                plane(wrong)
                    .unwrap_err()
                    .starts_with(&format!("{wrong:?} is not known"))
            );
        }
    }
}
