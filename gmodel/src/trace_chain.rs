//! How the lines of a controller's trace hold together: each ends with its number and a sum over all before it, so that a
//! line that is missing, was changed or stands elsewhere is noticed.
//!
//! Owns the form of that end. The sum is FNV-1a: it finds accidents, not forgeries.

/// The begin of a chain.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// The chain as far as it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceChain {
    /// Of the last line; 0 before the first.
    pub number: u64,
    sum: u64,
}

impl Default for TraceChain {
    fn default() -> Self {
        Self {
            number: 0,
            sum: BASIS,
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainBreak {
    /// So many lines are not there before it.
    Missing(u64),
    /// It stands behind one of a higher number, or of its own.
    Moved,
    /// It, or what it says of the one before, is not what was written.
    Changed,
}

impl TraceChain {
    /// The line of a JSON object with its end, and the chain with it.
    pub fn seal(&mut self, object: &str) -> String {
        let body = object.strip_suffix('}').unwrap_or(object);
        *self = self.after(body, self.number + 1);
        format!(
            "{body},\"n\":{},\"chain\":\"{:016x}\"}}",
            self.number, self.sum
        )
    }

    /// Goes on with a line as it was read: what is wrong with it, if it has an end at all.
    pub fn follow(&mut self, line: &str) -> Option<Result<(), ChainBreak>> {
        let (body, number, sum) = parts(line)?;
        let before = *self;
        *self = Self { number, sum };
        Some(match number.checked_sub(before.number + 1) {
            None => Err(ChainBreak::Moved),
            Some(0) if before.after(body, number) == *self => Ok(()),
            Some(0) => Err(ChainBreak::Changed),
            Some(missing) => Err(ChainBreak::Missing(missing)),
        })
    }

    /// The sum as it is written.
    pub fn text(&self) -> String {
        format!("{:016x}", self.sum)
    }

    /// The sum at the end of a text that ends with a whole line.
    pub fn last_of(end: &str) -> Option<String> {
        let line = end.strip_suffix('\n')?.lines().next_back()?;
        let at = line.rfind(",\"chain\":\"")?;
        line.get(at + 10..at + 26)
            .filter(|_| line.len() == at + 28)
            .map(str::to_owned)
    }

    fn after(self, body: &str, number: u64) -> Self {
        let bytes = self
            .sum
            .to_be_bytes()
            .into_iter()
            .chain(number.to_be_bytes())
            .chain(body.bytes());
        let sum = bytes.fold(BASIS, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { number, sum }
    }
}

/// Body, number and sum of a line.
fn parts(line: &str) -> Option<(&str, u64, u64)> {
    let (rest, sum) = line
        .trim_end()
        .strip_suffix("\"}")?
        .rsplit_once(",\"chain\":\"")?;
    let (body, number) = rest.rsplit_once(",\"n\":")?;
    Some((
        body,
        number.parse().ok()?,
        u64::from_str_radix(sum, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(count: u32) -> Vec<String> {
        let mut chain = TraceChain::default();
        (0..count)
            .map(|at| chain.seal(&format!("{{\"now\":{at}}}")))
            .collect()
    }

    fn read<'l>(lines: impl IntoIterator<Item = &'l String>) -> Vec<Result<(), ChainBreak>> {
        let mut chain = TraceChain::default();
        lines
            .into_iter()
            .filter_map(|line| chain.follow(line))
            .collect()
    }

    #[test]
    fn what_was_written_holds_together() {
        let lines = written(5);
        assert!(
            lines[3].starts_with("{\"now\":3,\"n\":4,\"chain\":\"") && lines[3].ends_with("\"}"),
            "{}",
            lines[3]
        );
        assert_eq!(read(&lines), [Ok(()); 5]);
        assert_eq!(
            TraceChain::default().follow("{\"now\":3}"),
            None,
            "a line of a release before has no end"
        );
    }

    #[test]
    fn a_gap_a_change_and_another_order_are_found_where_they_are() {
        let lines = written(5);
        assert_eq!(
            read([&lines[0], &lines[3], &lines[4]]),
            [Ok(()), Err(ChainBreak::Missing(2)), Ok(())]
        );
        assert_eq!(
            read([&lines[1], &lines[2]]),
            [Err(ChainBreak::Missing(1)), Ok(())]
        );
        let mut changed = lines.clone();
        changed[2] = changed[2].replace("\"now\":2", "\"now\":7");
        assert_eq!(
            read(&changed),
            [Ok(()), Ok(()), Err(ChainBreak::Changed), Ok(()), Ok(())]
        );
        assert_eq!(
            read([&lines[0], &lines[2], &lines[1]]),
            [Ok(()), Err(ChainBreak::Missing(1)), Err(ChainBreak::Moved)]
        );
        assert_eq!(
            read([&lines[0], &lines[0]]),
            [Ok(()), Err(ChainBreak::Moved)]
        );
    }

    #[test]
    fn the_end_of_a_file_tells_its_last_sum() {
        let lines = written(2);
        let mut chain = TraceChain::default();
        for line in &lines {
            assert_eq!(chain.follow(line), Some(Ok(())));
        }
        let text = lines.join("\n") + "\n";
        assert_eq!(TraceChain::last_of(&text), Some(chain.text()));
        assert_eq!(
            TraceChain::last_of(&text[text.len() - 40..]),
            Some(chain.text())
        );
        assert_eq!(
            TraceChain::last_of(text.trim_end()),
            None,
            "it may be cut off"
        );
        assert_eq!(TraceChain::last_of("{\"now\":1}\n"), None);
    }
}
