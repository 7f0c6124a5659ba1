//! A stand-in for a program that checks one GPU: writes the JSON lines of such a program, with the results of a faulty GPU where there
//! is a fault.
//! Owns what each word of the fault `check` does; gpud runs it like any program of a site.

use crate::state::{Gpu, State};
use std::io::{self, Write};
use std::time::Duration;

/// Bytes of nonsense, as from a program gone wild.
const GARBAGE_BYTES: usize = 100 << 20;

/// Writes what is found on the GPU in `slot`; does not return where it hangs.
pub fn check(state: &State, slot: usize, out: &mut impl Write) -> io::Result<()> {
    let gpu = &state.gpus[slot];
    std::thread::sleep(Duration::from_millis(gpu.faults.check_ms));
    match gpu.faults.check.as_str() {
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        "crash" => std::process::abort(),
        "garbage" => {
            let nonsense = vec![b'x'; 1 << 16];
            (0..GARBAGE_BYTES / nonsense.len()).try_for_each(|_| out.write_all(&nonsense))
        }
        _ => find(gpu, slot, out),
    }
}

fn find(gpu: &Gpu, slot: usize, out: &mut impl Write) -> io::Result<()> {
    let is = |word: &str| gpu.faults.check == word;
    let sum = fnv(&gpu.profile) ^ if is("wrong") { fnv(&gpu.uuid) } else { 0 };
    writeln!(
        out,
        "{{\"check\":\"arith\",\"version\":\"1\",\"checksum\":\"{sum:016x}\"}}"
    )?;
    let text = if is("fails") {
        ",\"text\":\"bit 3 of 0x7f0010 came back as 1\""
    } else {
        ""
    };
    writeln!(
        out,
        "{{\"check\":\"memory\",\"pass\":{}{text}}}",
        !is("fails")
    )?;
    let gb_s = (25.0 + slot as f64 / 100.0) / if is("slow") { 2.0 } else { 1.0 };
    writeln!(
        out,
        "{{\"check\":\"pcie\",\"value\":{gb_s:.3},\"unit\":\"GB/s\"}}"
    )
}

/// FNV-1a, for sums that are the same on every board of one kind.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apply_fault, host};

    fn lines(state: &State, slot: usize) -> Vec<String> {
        let mut out = Vec::new();
        check(state, slot, &mut out).unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn sound_boards_of_a_kind_have_one_checksum_and_each_fault_shows_in_its_line() {
        let mut state = host(&[("h100", 3)], "seed", 0).unwrap();
        let sound = lines(&state, 0);
        assert_eq!(lines(&state, 1)[0], sound[0]);
        for (word, line) in [("wrong", 0), ("fails", 1), ("slow", 2)] {
            apply_fault(&mut state, 0, format!("check {word}").parse().unwrap()).unwrap();
            let now = lines(&state, 0);
            let changed: Vec<usize> = (0..3).filter(|at| now[*at] != sound[*at]).collect();
            assert_eq!(changed, [line], "{word}");
        }
        apply_fault(&mut state, 0, "check none".parse().unwrap()).unwrap();
        assert_eq!(lines(&state, 0), sound);
        apply_fault(&mut state, 0, "check garbage".parse().unwrap()).unwrap();
        let mut out = Vec::new();
        check(&state, 0, &mut out).unwrap();
        assert_eq!(out.len(), GARBAGE_BYTES);
    }
}
