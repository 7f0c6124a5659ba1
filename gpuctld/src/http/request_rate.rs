//! How often an address, or a token, may ask or try: so many at once, and so many a second.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most addresses, and most tokens, that are remembered.
pub(crate) const MOST: usize = 16_384;

/// A host may have any address of its /64.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => four.into(),
            None => {
                let bits = six.to_bits() >> 64 << 64;
                std::net::Ipv6Addr::from_bits(bits).into()
            }
        },
    }
}

/// So many at once, and so many a second.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) burst: f64,
    pub(crate) per_sec: f64,
}

/// What each has left of its rate.
#[derive(Debug)]
pub(crate) struct Rates<K>(HashMap<K, (f64, Instant)>);

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Rates<K> {
    /// Whether there is one more for it now.
    pub(crate) fn take(&mut self, of: K, rate: Rate) -> bool {
        let now = Instant::now();
        if self.0.len() >= MOST && !self.0.contains_key(&of) {
            let full_after = Duration::from_secs_f64(rate.burst / rate.per_sec);
            self.0.retain(|_, (_, at)| now - *at < full_after);
            if self.0.len() >= MOST {
                self.0.clear();
            }
        }
        let (left, at) = self.0.entry(of).or_insert((rate.burst, now));
        let grown = (now - *at).as_secs_f64() * rate.per_sec;
        (*left, *at) = ((*left + grown).min(rate.burst), now);
        let may = *left >= 1.0;
        *left -= f64::from(u8::from(may));
        may
    }
}
