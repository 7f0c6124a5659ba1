//! How two GPUs of a node reach each other, in the words of `nvidia-smi topo -m`.
//!
//! Says what the link is and which of two is the better; placement is the scheduler's (`gsched/src/wiring.rs`).

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The best way between two GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum GpuLink {
    /// `NV12`: so many NVLinks, direct ones or through switches.
    Nvlink(u32),
    /// `PIX`: one PCIe switch, or one board.
    Switch,
    /// `PXB`: several PCIe switches, not the host's bridge.
    Switches,
    /// `PHB`: the host's bridge.
    HostBridge,
    /// `NODE`: one memory node of the host.
    Node,
    /// `SYS`: over the link between the host's sockets.
    System,
    /// Not told, or in a word of a later release.
    #[default]
    Unknown,
}

/// The ways from one GPU to others of its node, by their minor numbers: an index moves when a GPU vanishes.
pub type GpuLinks = BTreeMap<u32, GpuLink>;

/// Keys are read as text: frames of the node protocol say what they are by a key within, and serde then keeps keys as they stand.
pub(crate) fn by_minor<'de, D: Deserializer<'de>>(reader: D) -> Result<GpuLinks, D::Error> {
    let texts = BTreeMap::<String, GpuLink>::deserialize(reader)?;
    let one =
        |(minor, link): (String, GpuLink)| Ok((minor.parse().map_err(D::Error::custom)?, link));
    texts.into_iter().map(one).collect()
}

impl GpuLink {
    /// More is better. One NVLink is worth more than any way over PCIe; each further one as much again.
    pub fn weight(self) -> u32 {
        match self {
            Self::Nvlink(links) => 100 * links.clamp(1, 1000),
            Self::Switch => 20,
            Self::Switches => 16,
            Self::HostBridge => 12,
            Self::Node => 8,
            Self::System => 4,
            Self::Unknown => 0,
        }
    }
}

impl fmt::Display for GpuLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvlink(links) => write!(f, "NV{links}"),
            Self::Switch => f.write_str("PIX"),
            Self::Switches => f.write_str("PXB"),
            Self::HostBridge => f.write_str("PHB"),
            Self::Node => f.write_str("NODE"),
            Self::System => f.write_str("SYS"),
            Self::Unknown => f.write_str("?"),
        }
    }
}

impl FromStr for GpuLink {
    type Err = std::convert::Infallible;
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "PIX" => Self::Switch,
            "PXB" => Self::Switches,
            "PHB" => Self::HostBridge,
            "NODE" => Self::Node,
            "SYS" => Self::System,
            _ => word
                .strip_prefix("NV")
                .and_then(|links| links.parse().ok())
                .map_or(Self::Unknown, Self::Nvlink),
        })
    }
}

impl From<String> for GpuLink {
    fn from(word: String) -> Self {
        word.parse().unwrap_or_default()
    }
}

impl From<GpuLink> for String {
    fn from(link: GpuLink) -> Self {
        link.to_string()
    }
}

/// The weakest way within a set of GPUs, each given with its minor and its ways: what a collective over all of them is as fast as.
/// `None` for fewer than two, or where nothing is told.
pub fn weakest<'a>(gpus: impl Iterator<Item = (u32, &'a GpuLinks)> + Clone) -> Option<GpuLink> {
    let pairs = gpus.clone().enumerate().flat_map(|(at, (_, links))| {
        gpus.clone()
            .skip(at + 1)
            .map(move |(minor, _)| links.get(&minor).copied().unwrap_or_default())
    });
    pairs
        .min_by_key(|link| link.weight())
        .filter(|link| *link != GpuLink::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_written_as_nvidia_smi_writes_them() {
        for (link, word) in [
            (GpuLink::Nvlink(18), "NV18"),
            (GpuLink::Switch, "PIX"),
            (GpuLink::System, "SYS"),
        ] {
            assert_eq!(
                (link.to_string(), word.parse()),
                (word.to_owned(), Ok(link))
            );
        }
        assert_eq!(
            serde_json::from_str::<GpuLink>(r#""C2C2""#).unwrap(),
            GpuLink::Unknown,
            "of a later release"
        );
        assert_eq!("NVx".parse(), Ok(GpuLink::Unknown));
    }

    #[test]
    fn links_come_through_a_frame_of_the_node_protocol() {
        #[derive(Serialize, Deserialize)]
        #[serde(tag = "kind")]
        enum Frame {
            Hello(crate::node::GpuInfo),
        }
        let info = crate::node::GpuInfo {
            links: [(17, GpuLink::Nvlink(18))].into(),
            ..Default::default()
        };
        let text = serde_json::to_string(&Frame::Hello(info.clone())).unwrap();
        assert!(text.contains(r#""links":{"17":"NV18"}"#), "{text}");
        let Frame::Hello(read) = serde_json::from_str(&text).unwrap();
        assert_eq!(read, info);
        let broken = text.replace("17", "x");
        assert!(serde_json::from_str::<Frame>(&broken).is_err());
    }

    #[test]
    fn a_set_is_as_good_as_its_weakest_pair() {
        let ways = |pairs: &[(u32, GpuLink)]| pairs.iter().copied().collect::<GpuLinks>();
        let sets = [
            ways(&[(4, GpuLink::Nvlink(2)), (5, GpuLink::Node)]),
            ways(&[(3, GpuLink::Nvlink(2)), (5, GpuLink::System)]),
            ways(&[]),
        ];
        let of = |slots: &[usize]| {
            weakest(
                slots
                    .iter()
                    .map(|at| (3 + *at as u32, &sets[*at]))
                    .collect::<Vec<_>>()
                    .into_iter(),
            )
        };
        assert_eq!(of(&[0, 1]), Some(GpuLink::Nvlink(2)));
        assert_eq!(of(&[0, 1, 2]), Some(GpuLink::System));
        assert_eq!((of(&[0]), of(&[2, 2])), (None, None));
    }
}
