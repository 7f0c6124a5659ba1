//! gzip (RFC 1952), reading only: traces are kept compressed. Never reads a file.

use flate2::bufread::MultiGzDecoder;
use std::io::Read as _;

/// Data, unpacked into at most `most` bytes if it is a gzip file of one member or several.
///
/// # Errors
/// The gzip data is cut off or damaged, or unpacks to more bytes than allowed.
pub fn unpacked(data: Vec<u8>, most: usize) -> Result<Vec<u8>, String> {
    if !data.starts_with(&[0x1f, 0x8b]) {
        return Ok(data);
    }
    let mut out = Vec::new();
    MultiGzDecoder::new(&data[..])
        .take(most as u64 + 1)
        .read_to_end(&mut out)
        .map_err(|error| format!("the gzip data is cut off or damaged: {error}"))?;
    if out.len() > most {
        return Err(format!(
            "it unpacks to more than {most} bytes, which is the most that is read"
        ));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf aaaaaaaaaa | gzip -9n`.
    const TEN_LETTERS: [u8; 23] = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x4b, 0x4c, 0x84, 0x01, 0x00,
        0xf0, 0xcd, 0x11, 0x4c, 0x0a, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn one_member_or_several_are_read_up_to_a_bound() {
        assert_eq!(
            unpacked(b"job_id,user".to_vec(), 5),
            Ok(b"job_id,user".to_vec())
        );
        assert_eq!(
            unpacked(TEN_LETTERS.to_vec(), 10),
            Ok(b"aaaaaaaaaa".to_vec())
        );
        let error = unpacked(TEN_LETTERS.to_vec(), 9).unwrap_err();
        assert!(error.contains("more than 9 bytes"), "{error}");
        let twice = [TEN_LETTERS, TEN_LETTERS].concat();
        assert_eq!(unpacked(twice, 100), Ok(b"a".repeat(20)));
    }

    #[test]
    fn cut_off_and_damaged_data_is_refused() {
        for length in [2, 10, 14, 20] {
            assert!(
                unpacked(TEN_LETTERS[..length].to_vec(), 100).is_err(),
                "{length}"
            );
        }
        let mut wrong_checksum = TEN_LETTERS.to_vec();
        wrong_checksum[15] ^= 1;
        let error = unpacked(wrong_checksum, 100).unwrap_err();
        assert!(
            error.starts_with("the gzip data is cut off or damaged"),
            "{error}"
        );
    }
}
