//! `--mpi`: which kinds there are, and what ranks of different nodes tell each other at a fence. The nodes know their client and not
//! each other, so it brings each node the news of the other nodes. Source: srun(1) for `--mpi=list`.

use gcli::Failure;
use gmodel::parallel::{MAX_KEY_SPACE_BYTES, MpiType};
use gmodel::supervise::StepInput;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// As srun's own variable.
const MPI_TYPE: &str = "SLURM_MPI_TYPE";

/// What a command line may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiWord {
    List,
    Type(MpiType),
}

pub(crate) fn parse(text: &str) -> Result<MpiWord, String> {
    match text {
        "list" => Ok(MpiWord::List),
        text => MpiType::parse(text).map(MpiWord::Type),
    }
}

/// Whether options ask for the list, which needs neither job nor command.
pub(crate) fn asks_for_list(options: &[String]) -> bool {
    let is_pair = |pair: &[String]| pair[0] == "--mpi" && pair[1] == "list";
    options.iter().any(|word| word == "--mpi=list") || options.windows(2).any(is_pair)
}

/// Where distributions have libpmix.
const LIBRARY_DIRS: [&str; 4] = ["/usr/lib64", "/usr/lib", "/lib64", "/usr/local/lib"];

/// Of PMIx only where this machine has its library, as the nodes probably do.
pub(crate) fn print_list() {
    println!("MPI plugin types are...");
    for (word, known) in MpiType::WORDS {
        if known != MpiType::Pmix || has_libpmix() {
            println!("\t{word}");
        }
    }
}

fn has_libpmix() -> bool {
    let of_debian = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut dirs = LIBRARY_DIRS
        .iter()
        .map(Path::new)
        .chain([Path::new(&of_debian)]);
    dirs.any(|dir| dir.join("libpmix.so.2").exists())
}

/// As the command line or the environment has it; none: as the site has it.
pub(crate) fn chosen(
    given: Option<MpiWord>,
    has_terminal: bool,
) -> Result<Option<MpiType>, Failure> {
    let of_environment = || {
        let text = crate::environment::own(MPI_TYPE)?;
        let read = MpiType::parse(&text);
        Some(read.map_err(|why| Failure::usage(format_args!("{MPI_TYPE}: {why}"))))
    };
    match given {
        Some(MpiWord::Type(known)) => Ok(Some(known)),
        Some(MpiWord::List) => Err(Failure::usage("--mpi=list goes without a command")),
        // A shell in a terminal is no rank.
        None if has_terminal => Ok(Some(MpiType::None)),
        None => of_environment().transpose(),
    }
}

/// What nodes have said of the fence that their ranks wait at.
#[derive(Default)]
pub(crate) struct FenceExchange {
    pieces: BTreeMap<u32, Vec<Vec<u8>>>,
    whole: BTreeSet<u32>,
    bytes: usize,
}

impl FenceExchange {
    /// Some node waits at a fence, and this one has not come to it.
    pub(crate) fn waits_for(&self, at: u32) -> bool {
        !self.whole.is_empty() && !self.whole.contains(&at)
    }

    /// A piece of a node. When all nodes have said theirs: what each is to be told.
    ///
    /// # Errors
    /// More than the ranks of a step may put.
    pub(crate) fn take(
        &mut self,
        at: u32,
        piece: Vec<u8>,
        is_last: bool,
        nodes: &BTreeSet<u32>,
    ) -> Result<Vec<(u32, Vec<StepInput>)>, String> {
        self.bytes += piece.len();
        if self.bytes > MAX_KEY_SPACE_BYTES {
            return Err(format!(
                "its ranks put more than {} MiB at one fence",
                MAX_KEY_SPACE_BYTES >> 20
            ));
        }
        if !piece.is_empty() {
            self.pieces.entry(at).or_default().push(piece);
        }
        if is_last {
            self.whole.insert(at);
        }
        if !nodes.is_subset(&self.whole) {
            return Ok(Vec::new());
        }
        let all = std::mem::take(self);
        let news = |at: &u32| {
            let of_others = all.pieces.iter().filter(|(other, _)| *other != at);
            let pieces = of_others.flat_map(|(_, pieces)| pieces.iter().cloned());
            let mut inputs: Vec<StepInput> = pieces
                .map(|piece| StepInput::Fence {
                    is_last: false,
                    piece,
                })
                .collect();
            inputs.push(StepInput::Fence {
                is_last: true,
                piece: Vec::new(),
            });
            (*at, inputs)
        };
        Ok(nodes.iter().map(news).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_hears_the_news_of_the_others_once_all_have_said_theirs() {
        let nodes = BTreeSet::from([0, 1, 2]);
        let mut exchange = FenceExchange::default();
        let mut said = |at, is_last, text: &str| {
            let piece = text.as_bytes().to_vec();
            exchange.take(at, piece, is_last, &nodes).unwrap()
        };
        assert!(said(0, false, "a").is_empty() && said(2, true, "").is_empty());
        assert!(said(0, true, "").is_empty(), "the second node is awaited");
        let told: Vec<String> = said(1, true, "b")
            .into_iter()
            .map(|(at, inputs)| {
                let piece = |input: &StepInput| match input {
                    StepInput::Fence { is_last, piece } => {
                        String::from_utf8_lossy(piece).into_owned()
                            + if *is_last { "." } else { "" }
                    }
                    other => format!("{other:?}"),
                };
                format!("{at}:{}", inputs.iter().map(piece).collect::<String>())
            })
            .collect();
        assert_eq!(told, ["0:b.", "1:a.", "2:ab."]);
        assert!(said(0, true, "").is_empty(), "the next fence begins anew");
    }

    #[test]
    fn nodes_that_send_without_end_are_cut_off() {
        let mut exchange = FenceExchange::default();
        let piece = vec![0; 1 << 20];
        let nodes = BTreeSet::from([0]);
        let refused = (0..65).any(|_| exchange.take(0, piece.clone(), false, &nodes).is_err());
        assert!(refused);
    }

    #[test]
    fn the_list_is_asked_for_in_either_form() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(asks_for_list(&words("-n 2 --mpi=list")) && asks_for_list(&words("--mpi list")));
        assert!(!asks_for_list(&words("--mpi=none")));
    }
}
