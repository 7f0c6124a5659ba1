//! Carrying out a kernel, thread after thread, over the simulated memory of one GPU. Owns what each instruction does, and where a
//! GPU that is not sound does it wrong. Slow, and exact: what it computes is what a GPU computes.

use std::collections::BTreeMap;

use super::ptx::{Atomic, Binary, Comparison, Instruction, Kernel, Operand, Place, Special, Width};
use super::{CudaCode, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};

/// Which thread of which blocks an unsound GPU computes wrong, as one lane of one multiprocessor would.
const WRONG_LANE: u32 = 37;
const WRONG_MULTIPROCESSOR: u32 = 1;
/// How blocks go round the multiprocessors.
const MULTIPROCESSORS: u32 = 3;
const WRONG_BIT: u64 = 1 << 5;
/// Where in each allocation that is long enough a bit does not become 0, and which.
const STUCK_AT: u64 = 0x7f10;
const STUCK_BIT: u64 = 1 << 3;

/// What is wrong with a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuDefects {
    pub arithmetic: bool,
    pub memory: bool,
}

/// Allocations by their first address.
#[derive(Debug, Default)]
pub struct Memory {
    pub pieces: BTreeMap<u64, Vec<u8>>,
    pub unsound: GpuDefects,
}

impl Memory {
    /// The bytes from `address` on; illegal where they are not all in one allocation.
    pub fn bytes(&mut self, address: u64, count: usize) -> Result<&mut [u8], CudaCode> {
        let (start, piece) = self
            .pieces
            .range_mut(..=address)
            .next_back()
            .ok_or(ILLEGAL_ADDRESS)?;
        let from = usize::try_from(address - start).map_err(|_| ILLEGAL_ADDRESS)?;
        let end = from.checked_add(count).ok_or(ILLEGAL_ADDRESS)?;
        piece.get_mut(from..end).ok_or(ILLEGAL_ADDRESS)
    }

    fn load(&mut self, address: u64, width: Width) -> Result<u64, CudaCode> {
        let stuck = self.unsound.memory && self.is_stuck(address);
        let mut word = [0; 8];
        word[..width.bytes()].copy_from_slice(self.aligned(address, width)?);
        Ok(u64::from_le_bytes(word) | if stuck { STUCK_BIT } else { 0 })
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Result<(), CudaCode> {
        self.aligned(address, width)?
            .copy_from_slice(&value.to_le_bytes()[..width.bytes()]);
        Ok(())
    }

    fn aligned(&mut self, address: u64, width: Width) -> Result<&mut [u8], CudaCode> {
        if !address.is_multiple_of(width.bytes() as u64) {
            return Err(MISALIGNED_ADDRESS);
        }
        self.bytes(address, width.bytes())
    }

    fn is_stuck(&self, address: u64) -> bool {
        self.pieces
            .range(..=address)
            .next_back()
            .is_some_and(|(start, _)| address - start == STUCK_AT)
    }
}

/// Carries out a kernel on a line of blocks; `parameters` in their order. An error is one of the memory, and ends it.
pub fn run(
    kernel: &Kernel,
    memory: &mut Memory,
    blocks: u32,
    threads: u32,
    parameters: &[u64],
) -> Result<(), CudaCode> {
    let mut registers = vec![0; kernel.registers];
    for block in 0..blocks {
        for thread in 0..threads {
            registers.fill(0);
            let here = [thread, block, threads, blocks];
            let is_wrong = memory.unsound.arithmetic
                && thread == WRONG_LANE
                && block % MULTIPROCESSORS == WRONG_MULTIPROCESSOR;
            Thread {
                here,
                registers: &mut registers,
                error: if is_wrong { WRONG_BIT } else { 0 },
            }
            .run(kernel, memory, parameters)?;
        }
    }
    Ok(())
}

struct Thread<'a> {
    /// In the order of [`Special`].
    here: [u32; 4],
    registers: &'a mut [u64],
    /// Wrong bits of its next result of 64-bit or floating point multiplication.
    error: u64,
}

impl Thread<'_> {
    fn run(
        &mut self,
        kernel: &Kernel,
        memory: &mut Memory,
        parameters: &[u64],
    ) -> Result<(), CudaCode> {
        let mut at = 0;
        loop {
            let line = &kernel.code[at];
            at += 1;
            if line
                .only_if
                .is_some_and(|(register, negated)| (self.registers[register] != 0) == negated)
            {
                continue;
            }
            match &line.what {
                Instruction::Return => return Ok(()),
                Instruction::Branch { to } => at = *to,
                other => self.execute(other, memory, parameters)?,
            }
        }
    }

    fn execute(
        &mut self,
        what: &Instruction,
        memory: &mut Memory,
        parameters: &[u64],
    ) -> Result<(), CudaCode> {
        match *what {
            Instruction::Copy { to, from, width } => self.put(to, width, self.value(from)),
            Instruction::Parameter { to, number } => self.registers[to] = parameters[number],
            Instruction::Load { to, place, width } => {
                self.registers[to] = memory.load(self.address(place), width)?
            }
            Instruction::Store { place, from, width } => {
                memory.store(self.address(place), width, self.value(from))?
            }
            Instruction::Binary {
                what,
                to,
                a,
                b,
                width,
            } => self.put(to, width, binary(what, self.value(a), self.value(b), width)),
            Instruction::MulAdd { to, a, b, c, width } => {
                let error = if width == Width::Bits64 {
                    std::mem::take(&mut self.error)
                } else {
                    0
                };
                self.put(
                    to,
                    width,
                    self.value(a)
                        .wrapping_mul(self.value(b))
                        .wrapping_add(self.value(c))
                        ^ error,
                );
            }
            Instruction::MulWide { to, a, b } => self.registers[to] = self.value(a) * self.value(b),
            Instruction::FusedMulAdd { to, a, b, c, width } => {
                let error = std::mem::take(&mut self.error);
                self.put(
                    to,
                    width,
                    fused(self.value(a), self.value(b), self.value(c), width) ^ error,
                );
            }
            Instruction::Compare {
                to,
                how,
                a,
                b,
                width,
            } => {
                let [a, b] = [a, b].map(|operand| kept(self.value(operand), width));
                self.registers[to] = compare(how, a, b).into();
            }
            Instruction::Atomic {
                what,
                to,
                place,
                value,
            } => {
                let (address, value) = (self.address(place), self.value(value));
                let old = memory.load(address, Width::Bits64)?;
                let new = match what {
                    Atomic::Add => old.wrapping_add(value),
                    Atomic::Min => old.min(value),
                    Atomic::Or => old | value,
                };
                memory.store(address, Width::Bits64, new)?;
                self.registers[to] = old;
            }
            // Of `run`.
            Instruction::Branch { .. } | Instruction::Return => {}
        }
        Ok(())
    }

    fn put(&mut self, to: usize, width: Width, value: u64) {
        self.registers[to] = kept(value, width);
    }

    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(number) => self.registers[number],
            Operand::Value(value) => value,
            Operand::Special(Special::Thread) => self.here[0].into(),
            Operand::Special(Special::Block) => self.here[1].into(),
            Operand::Special(Special::Threads) => self.here[2].into(),
            Operand::Special(Special::Blocks) => self.here[3].into(),
        }
    }

    fn address(&self, place: Place) -> u64 {
        self.registers[place.register].wrapping_add(place.offset)
    }
}

fn kept(value: u64, width: Width) -> u64 {
    match width {
        Width::Bits32 => value & u64::from(u32::MAX),
        Width::Bits64 => value,
    }
}

fn binary(what: Binary, a: u64, b: u64, width: Width) -> u64 {
    // A shift by the width or more leaves nothing.
    let by = u32::try_from(b).ok().filter(|by| *by < width.bits());
    match what {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::MulLow => a.wrapping_mul(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => by.map_or(0, |by| a << by),
        Binary::ShiftRight => by.map_or(0, |by| a >> by),
    }
}

/// Rounded once, to nearest even.
fn fused(a: u64, b: u64, c: u64, width: Width) -> u64 {
    match width {
        Width::Bits32 => {
            let [a, b, c] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
            a.mul_add(b, c).to_bits().into()
        }
        Width::Bits64 => {
            let [a, b, c] = [a, b, c].map(f64::from_bits);
            a.mul_add(b, c).to_bits()
        }
    }
}

fn compare(how: Comparison, a: u64, b: u64) -> bool {
    match how {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessOrEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterOrEqual => a >= b,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ptx;
    use super::*;

    const BASE: u64 = 0x1000;

    /// Carries out one body with 8 words of memory at parameter `p`, in 2 blocks of 3 threads.
    fn words_after(body: &str, unsound: GpuDefects) -> Result<Vec<u64>, CudaCode> {
        let text = format!(
            ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{ .reg .pred %p<3>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %d<6>;\n\
             ld.param.u64 %d1, [p];\n cvta.to.global.u64 %d1, %d1;\n mov.u32 %r1, %ctaid.x;\n mov.u32 %r2, %ntid.x;\n mov.u32 %r3, %tid.x;\n\
             mad.lo.u32 %r1, %r1, %r2, %r3;\n mul.wide.u32 %d2, %r1, 8;\n add.u64 %d2, %d1, %d2;\n{body}\n ret;\n}}"
        );
        let kernels = ptx::read(&text).unwrap_or_else(|e| panic!("{e}"));
        let mut memory = Memory {
            pieces: BTreeMap::from([(BASE, vec![0; 64])]),
            unsound,
        };
        run(&kernels[0], &mut memory, 2, 3, &[BASE])?;
        Ok(memory.pieces[&BASE]
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect())
    }

    fn after(body: &str) -> Vec<u64> {
        words_after(body, GpuDefects::default()).unwrap()
    }

    #[test]
    fn each_thread_knows_where_it_is_and_writes_its_own_word() {
        assert_eq!(
            after("cvt.u64.u32 %d3, %r1; st.global.u64 [%d2], %d3;"),
            [0, 1, 2, 3, 4, 5, 0, 0]
        );
        assert_eq!(
            after("mov.u32 %r4, %nctaid.x; cvt.u64.u32 %d3, %r4; st.global.u64 [%d2+8], %d3;"),
            [0, 2, 2, 2, 2, 2, 2, 0]
        );
    }

    #[test]
    fn arithmetic_wraps_shifts_and_rounds_as_the_instruction_set_says() {
        let one = |body: &str| after(&format!("{body} st.global.u64 [%d1], %d3;"))[0];
        assert_eq!(
            one("mov.u32 %r4, 4294967295; add.u32 %r4, %r4, 2; cvt.u64.u32 %d3, %r4;"),
            1
        );
        assert_eq!(one("mov.u64 %d3, 1; shl.b64 %d3, %d3, 64;"), 0);
        assert_eq!(
            one("mov.u64 %d3, 0x8000000000000000; shr.u64 %d3, %d3, 63;"),
            1
        );
        assert_eq!(
            one("mov.u32 %r4, 0xffffffff; mul.wide.u32 %d3, %r4, %r4;"),
            0xffff_fffe_0000_0001
        );
        assert_eq!(
            one("mov.u64 %d4, 0x100000001; cvt.u32.u64 %r4, %d4; cvt.u64.u32 %d3, %r4;"),
            1
        );
        assert_eq!(one("mov.u64 %d3, 5; sub.u64 %d3, %d3, 6;"), u64::MAX);
        // 1 + 2^-23 squared, less 1 + 2^-22: nothing is left where the product is rounded, 2^-46 where it is not.
        let fused = "mov.b32 %f1, 0f3F800001; mov.b32 %f2, 0fBF800002; fma.rn.f32 %f3, %f1, %f1, %f2; mov.b32 %r4, %f3; cvt.u64.u32 %d3, %r4;";
        assert_eq!(f32::from_bits(one(fused) as u32), 2_f32.powi(-46));
    }

    #[test]
    fn predicates_branches_and_atomics() {
        assert_eq!(
            after(
                "setp.ge.u32 %p1, %r1, 2; @%p1 bra OUT; atom.global.add.u64 %d3, [%d1], 10; OUT:"
            )[0],
            20
        );
        assert_eq!(
            after("setp.eq.u32 %p1, %r1, 2; cvt.u64.u32 %d3, %r1; @!%p1 st.global.u64 [%d2], %d3;"),
            [0, 1, 0, 3, 4, 5, 0, 0]
        );
        assert_eq!(
            after(
                "mov.u64 %d4, 7; st.global.u64 [%d1], %d4; cvt.u64.u32 %d3, %r1; atom.global.min.u64 %d4, [%d1], %d3;"
            )[0],
            5
        );
        assert_eq!(
            after("cvt.u64.u32 %d3, %r1; atom.global.or.b64 %d4, [%d1], %d3;")[0],
            7
        );
        assert_eq!(
            after(
                "mov.u32 %r4, 3; AGAIN: atom.global.add.u64 %d3, [%d1], 1; sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra AGAIN;"
            )[0],
            18
        );
    }

    #[test]
    fn what_is_no_memory_of_it_ends_the_kernel() {
        let none = GpuDefects::default();
        assert_eq!(
            words_after("st.global.u64 [%d1+64], %d1;", none),
            Err(ILLEGAL_ADDRESS)
        );
        assert_eq!(
            words_after("ld.global.u64 %d3, [%d1+60];", none),
            Err(MISALIGNED_ADDRESS)
        );
        assert_eq!(
            words_after("mov.u64 %d4, 8; ld.global.u64 %d3, [%d4];", none),
            Err(ILLEGAL_ADDRESS)
        );
    }

    #[test]
    fn a_gpu_that_is_not_sound_is_wrong_in_one_lane_and_at_one_word() {
        let kernels = ptx::read(gsys::cuda::CHECK_PTX).unwrap();
        let ends = |unsound: GpuDefects| {
            let mut memory = Memory {
                pieces: BTreeMap::from([(BASE, vec![1; 64 << 10])]),
                unsound,
            };
            run(&kernels[0], &mut memory, 2, 64, &[BASE, 3]).unwrap();
            memory.pieces.remove(&BASE).unwrap()
        };
        let (right, wrong) = (
            ends(GpuDefects::default()),
            ends(GpuDefects {
                arithmetic: true,
                memory: false,
            }),
        );
        let differ: Vec<usize> = (0..128)
            .filter(|at| right[at * 16..(at + 1) * 16] != wrong[at * 16..(at + 1) * 16])
            .collect();
        assert_eq!(differ, [64 + WRONG_LANE as usize]);
        let mut memory = Memory {
            pieces: BTreeMap::from([(BASE, vec![0; 64 << 10])]),
            unsound: GpuDefects {
                memory: true,
                arithmetic: false,
            },
        };
        assert_eq!(memory.load(BASE + STUCK_AT, Width::Bits64), Ok(STUCK_BIT));
        assert_eq!(memory.load(BASE + STUCK_AT + 8, Width::Bits64), Ok(0));
    }
}
