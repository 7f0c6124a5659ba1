//! gzip and DEFLATE (RFC 1952, RFC 1951), reading only: traces are kept compressed, and a pure crate needs no library
//! for that. Owns the checks (CRC-32, length); never reads a file.

use std::fmt;

/// Reads a whole gzip file, of one member or several, into at most `most` bytes.
///
/// # Errors
/// The data is no gzip, is cut off or damaged, or is larger than allowed.
pub fn gunzip(data: &[u8], most: usize) -> Result<Vec<u8>, GunzipError> {
    let mut out = Vec::with_capacity(data.len().saturating_mul(4).min(most));
    let mut rest = data;
    loop {
        let begin = out.len();
        let mut bits = Bits::new(header(rest)?);
        inflate(&mut bits, &mut out, most)?;
        let trailer = bits.rest_of_bytes();
        let (crc, len) = (little_endian(trailer, 0)?, little_endian(trailer, 4)?);
        if len != (out.len() - begin) as u32 || crc != crc32(&out[begin..]) {
            return Err(GunzipError::Damaged("its checksum is wrong"));
        }
        rest = &trailer[8..];
        if rest.is_empty() {
            return Ok(out);
        }
    }
}

/// Whether the data begins as gzip files do.
pub fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(&[0x1f, 0x8b])
}

/// Why data could not be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GunzipError {
    /// It ends before it should.
    CutOff,
    Damaged(&'static str),
    TooLarge {
        most: usize,
    },
}

impl fmt::Display for GunzipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff => write!(f, "the gzip data is cut off"),
            Self::Damaged(how) => write!(f, "the gzip data is damaged: {how}"),
            Self::TooLarge { most } => write!(
                f,
                "it unpacks to more than {most} bytes, which is the most that is read"
            ),
        }
    }
}

impl std::error::Error for GunzipError {}

/// What follows the header of a member.
fn header(data: &[u8]) -> Result<&[u8], GunzipError> {
    let fixed = data.get(..10).ok_or(GunzipError::CutOff)?;
    if fixed[0] != 0x1f || fixed[1] != 0x8b || fixed[2] != 8 {
        return Err(GunzipError::Damaged("it does not begin as gzip"));
    }
    let flags = fixed[3];
    let mut rest = &data[10..];
    if flags & 4 != 0 {
        let len = usize::from(*rest.first().ok_or(GunzipError::CutOff)?)
            + 256 * usize::from(*rest.get(1).ok_or(GunzipError::CutOff)?);
        rest = rest.get(2 + len..).ok_or(GunzipError::CutOff)?;
    }
    // A file name and a comment, each ended by NUL.
    for bit in [8, 16] {
        if flags & bit != 0 {
            let end = rest
                .iter()
                .position(|byte| *byte == 0)
                .ok_or(GunzipError::CutOff)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & 2 != 0 {
        rest = rest.get(2..).ok_or(GunzipError::CutOff)?;
    }
    Ok(rest)
}

fn inflate(bits: &mut Bits, out: &mut Vec<u8>, most: usize) -> Result<(), GunzipError> {
    loop {
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(bits, out, most)?,
            1 => {
                let (literals, distances) = fixed_codes();
                compressed(bits, out, most, &literals, &distances)?;
            }
            2 => {
                let (literals, distances) = dynamic_codes(bits)?;
                compressed(bits, out, most, &literals, &distances)?;
            }
            _ => return Err(GunzipError::Damaged("a block of unknown kind")),
        }
        if last {
            return Ok(());
        }
    }
}

fn stored(bits: &mut Bits, out: &mut Vec<u8>, most: usize) -> Result<(), GunzipError> {
    let rest = bits.rest_of_bytes();
    let both = little_endian(rest, 0)?;
    let (len, complement) = (both & 0xffff, both >> 16);
    if len != complement ^ 0xffff {
        return Err(GunzipError::Damaged("a stored block whose length is wrong"));
    }
    let block = rest.get(4..4 + len as usize).ok_or(GunzipError::CutOff)?;
    if out.len() + block.len() > most {
        return Err(GunzipError::TooLarge { most });
    }
    out.extend_from_slice(block);
    *bits = Bits::new(&rest[4 + len as usize..]);
    Ok(())
}

const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LENGTH_BITS: [u8; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];
const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577,
];
const DISTANCE_BITS: [u8; 30] = [
    0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13,
    13,
];

fn compressed(
    bits: &mut Bits,
    out: &mut Vec<u8>,
    most: usize,
    literals: &Codes,
    distances: &Codes,
) -> Result<(), GunzipError> {
    loop {
        let symbol = literals.read(bits)?;
        if symbol < 256 {
            if out.len() >= most {
                return Err(GunzipError::TooLarge { most });
            }
            out.push(symbol as u8);
            continue;
        }
        if symbol == 256 {
            return Ok(());
        }
        let at = usize::from(symbol) - 257;
        let base = *LENGTH_BASE
            .get(at)
            .ok_or(GunzipError::Damaged("a length that there is not"))?;
        let len = usize::from(base) + bits.take(u32::from(LENGTH_BITS[at]))? as usize;
        let at = usize::from(distances.read(bits)?);
        let base = *DISTANCE_BASE
            .get(at)
            .ok_or(GunzipError::Damaged("a distance that there is not"))?;
        let back = usize::from(base) + bits.take(u32::from(DISTANCE_BITS[at]))? as usize;
        if back > out.len() {
            return Err(GunzipError::Damaged("a distance from before the begin"));
        }
        if out.len() + len > most {
            return Err(GunzipError::TooLarge { most });
        }
        let from = out.len() - back;
        for at in from..from + len {
            out.push(out[at]);
        }
    }
}

fn fixed_codes() -> (Codes, Codes) {
    let mut lengths = [8u8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    (Codes::new(&lengths), Codes::new(&[5; 30]))
}

fn dynamic_codes(bits: &mut Bits) -> Result<(Codes, Codes), GunzipError> {
    const ORDER: [usize; 19] = [
        16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
    ];
    let literals = bits.take(5)? as usize + 257;
    let distances = bits.take(5)? as usize + 1;
    let count = bits.take(4)? as usize + 4;
    let mut lengths = [0u8; 19];
    for at in &ORDER[..count] {
        lengths[*at] = bits.take(3)? as u8;
    }
    let codes = Codes::new(&lengths);
    let mut all: Vec<u8> = Vec::with_capacity(literals + distances);
    while all.len() < literals + distances {
        let (value, times) = match codes.read(bits)? {
            16 => {
                let last = *all
                    .last()
                    .ok_or(GunzipError::Damaged("a repetition of nothing"))?;
                (last, 3 + bits.take(2)?)
            }
            17 => (0, 3 + bits.take(3)?),
            18 => (0, 11 + bits.take(7)?),
            length => (length as u8, 1),
        };
        all.extend(std::iter::repeat_n(value, times as usize));
    }
    if all.len() > literals + distances {
        return Err(GunzipError::Damaged(
            "more code lengths than there are codes",
        ));
    }
    Ok((Codes::new(&all[..literals]), Codes::new(&all[literals..])))
}

/// A canonical Huffman code: how many codes each length has, and their symbols in order.
struct Codes {
    counts: [u16; 16],
    symbols: Vec<u16>,
    /// By the next bits: symbol times 16 plus length, or 0 where the code is longer.
    quick: Vec<u16>,
}

/// Codes of at most so many bits are looked up at once.
const QUICK_BITS: u32 = 10;

impl Codes {
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0u16; 16];
        for length in lengths {
            counts[usize::from(*length)] += 1;
        }
        counts[0] = 0;
        let mut next = [0usize; 16];
        for length in 1..16 {
            next[length] = next[length - 1] + usize::from(counts[length - 1]);
        }
        let mut symbols = vec![0u16; lengths.len()];
        for (symbol, length) in lengths
            .iter()
            .enumerate()
            .filter(|(_, length)| **length > 0)
        {
            symbols[next[usize::from(*length)]] = symbol as u16;
            next[usize::from(*length)] += 1;
        }
        let quick = quick_table(&counts, &symbols);
        Self {
            counts,
            symbols,
            quick,
        }
    }

    fn read(&self, bits: &mut Bits) -> Result<u16, GunzipError> {
        let entry = self.quick[bits.peek(QUICK_BITS) as usize];
        if entry > 0 && bits.drop_bits(u32::from(entry & 15)) {
            return Ok(entry >> 4);
        }
        // Bit by bit: first code of each length, and where its symbols begin.
        let (mut code, mut first, mut index) = (0i32, 0i32, 0i32);
        for length in 1..16 {
            code |= bits.take(1)? as i32;
            let count = i32::from(self.counts[length]);
            if code - count < first {
                return Ok(self.symbols[(index + code - first) as usize]);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(GunzipError::Damaged("a code that there is not"))
    }
}

fn quick_table(counts: &[u16; 16], symbols: &[u16]) -> Vec<u16> {
    let mut quick = vec![0u16; 1 << QUICK_BITS];
    let (mut code, mut index) = (0u32, 0usize);
    for length in 1..=QUICK_BITS {
        for _ in 0..counts[length as usize] {
            if code >= 1 << length {
                return quick; // more codes than there is room for: met when one is read
            }
            let reversed = code.reverse_bits() >> (32 - length);
            let entry = (symbols[index] << 4) | length as u16;
            let mut at = reversed;
            while at < 1 << QUICK_BITS {
                quick[at as usize] = entry;
                at += 1 << length;
            }
            code += 1;
            index += 1;
        }
        code <<= 1;
    }
    quick
}

/// Bits of the data, the lowest of each byte first.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            held: 0,
            count: 0,
        }
    }

    fn fill(&mut self) {
        while self.count <= 48 {
            let Some(byte) = self.data.get(self.at) else {
                return;
            };
            self.held |= u64::from(*byte) << self.count;
            self.count += 8;
            self.at += 1;
        }
    }

    /// The next bits without taking them; zeros after the end.
    fn peek(&mut self, count: u32) -> u32 {
        self.fill();
        (self.held & ((1 << count) - 1)) as u32
    }

    fn drop_bits(&mut self, count: u32) -> bool {
        if count > self.count {
            return false;
        }
        self.held >>= count;
        self.count -= count;
        true
    }

    fn take(&mut self, count: u32) -> Result<u32, GunzipError> {
        let value = self.peek(count);
        if self.drop_bits(count) {
            Ok(value)
        } else {
            Err(GunzipError::CutOff)
        }
    }

    /// The bytes after the one that is begun.
    fn rest_of_bytes(&self) -> &'a [u8] {
        &self.data[self.at - (self.count / 8) as usize..]
    }
}

fn little_endian(data: &[u8], at: usize) -> Result<u32, GunzipError> {
    let bytes = data.get(at..at + 4).ok_or(GunzipError::CutOff)?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |value, byte| (value << 8) | u32::from(*byte)))
}

fn crc32(data: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (at, entry) in table.iter_mut().enumerate() {
        *entry = (0..8).fold(at as u32, |c, _| {
            if c & 1 == 1 {
                (c >> 1) ^ 0xedb8_8320
            } else {
                c >> 1
            }
        });
    }
    !data.iter().fold(!0u32, |crc, byte| {
        (crc >> 8) ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with nothing behind it.
    const SMALL: &[u8] = &[0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03];

    #[test]
    fn what_is_no_gzip_or_is_cut_off_is_refused() {
        assert_eq!(
            gunzip(b"job_id,user", 100),
            Err(GunzipError::Damaged("it does not begin as gzip"))
        );
        assert_eq!(gunzip(b"", 100), Err(GunzipError::CutOff));
        assert_eq!(gunzip(SMALL, 100), Err(GunzipError::CutOff));
        assert!(is_gzip(SMALL) && !is_gzip(b"job_id"));
    }

    /// A gzip file of stored blocks, which needs no compressor.
    fn stored_file(text: &[u8]) -> Vec<u8> {
        let mut file = SMALL.to_vec();
        file.push(1);
        let len = text.len() as u16;
        file.extend_from_slice(&len.to_le_bytes());
        file.extend_from_slice(&(!len).to_le_bytes());
        file.extend_from_slice(text);
        file.extend_from_slice(&crc32(text).to_le_bytes());
        file.extend_from_slice(&u32::from(len).to_le_bytes());
        file
    }

    #[test]
    fn stored_blocks_and_several_members_are_read() {
        let mut file = stored_file(b"hello ");
        file.extend(stored_file(b"world"));
        assert_eq!(gunzip(&file, 100).unwrap(), b"hello world");
        assert_eq!(gunzip(&file, 5), Err(GunzipError::TooLarge { most: 5 }));
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let mut file = stored_file(b"hello world");
        file[18] ^= 1;
        assert_eq!(
            gunzip(&file, 100),
            Err(GunzipError::Damaged("its checksum is wrong"))
        );
    }

    #[test]
    fn fixed_codes_are_read() {
        // `printf aaaaaaaaaa | gzip -9n`: one block with the fixed codes, a literal and a repetition.
        let file = [
            0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x4b, 0x4c, 0x84, 0x01,
            0x00, 0xf0, 0xcd, 0x11, 0x4c, 0x0a, 0x00, 0x00, 0x00,
        ];
        assert_eq!(
            gunzip(&file, 100).map(String::from_utf8),
            Ok(Ok("aaaaaaaaaa".into()))
        );
        assert_eq!(gunzip(&file, 9), Err(GunzipError::TooLarge { most: 9 }));
    }
}
