//! The kernels of `checks.ptx`, each behind a function with its parameters, so that no caller can pass others or run a kernel beyond
//! its memory. The module chooses the number of threads; the caller gives the purpose.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use super::CHECK_PTX;
use super::context::{Context, DeviceMemory};
use super::error::CudaError;
use super::library::Handle;

/// The kernels, compiled for one GPU.
#[derive(Debug)]
pub struct CheckKernels<'a> {
    context: &'a Context,
    mix_int: Handle,
    chain_f32: Handle,
    chain_f64: Handle,
    pattern_write: Handle,
    pattern_sweep: Handle,
}

/// The value `number * step + offset` for each 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub step: u64,
    pub offset: u64,
}

/// What a sweep found that was not the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepReport {
    pub wrong_words: u64,
    /// Number of the first, within the memory; `u64::MAX`: none.
    pub first: u64,
    /// All bits that were wrong in any word.
    pub bits: u64,
}

impl SweepReport {
    pub const BYTES: usize = 24;

    /// As a sweep finds it before its first word.
    pub fn clean() -> SweepReport {
        SweepReport {
            wrong_words: 0,
            first: u64::MAX,
            bits: 0,
        }
    }

    pub fn to_bytes(self) -> Vec<u8> {
        [self.wrong_words, self.first, self.bits]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    }

    /// `bytes` has [`SweepReport::BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> SweepReport {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        SweepReport {
            wrong_words: word(0),
            first: word(1),
            bits: word(2),
        }
    }
}

impl<'a> CheckKernels<'a> {
    /// Threads of one block: lanes of the arithmetic.
    pub const LANES: usize = 256;
    /// Bytes that each thread of the arithmetic owns.
    pub const VALUE_BYTES: usize = 16;
    /// Blocks that go through memory: enough for every board, where there is so much memory.
    const SWEEP_BLOCKS: u64 = 4096;

    /// Compiles the kernels for the GPU of this context.
    pub fn compile(context: &'a Context) -> Result<CheckKernels<'a>, CudaError> {
        let module = context.compile(CHECK_PTX)?;
        let find = |name: &CStr| context.function(module, name);
        Ok(CheckKernels {
            context,
            mix_int: find(c"mix_int")?,
            chain_f32: find(c"chain_f32")?,
            chain_f64: find(c"chain_f64")?,
            pattern_write: find(c"pattern_write")?,
            pattern_sweep: find(c"pattern_sweep")?,
        })
    }

    /// Begins `rounds` of integer arithmetic on every value in `values`: [`CheckKernels::VALUE_BYTES`] for each thread, in whole
    /// blocks of [`CheckKernels::LANES`].
    pub fn mix_int(&self, values: &DeviceMemory<'_>, rounds: u32) -> Result<(), CudaError> {
        self.arithmetic(self.mix_int, values, rounds)
    }

    /// The same in single precision.
    pub fn chain_f32(&self, values: &DeviceMemory<'_>, rounds: u32) -> Result<(), CudaError> {
        self.arithmetic(self.chain_f32, values, rounds)
    }

    /// The same in double precision.
    pub fn chain_f64(&self, values: &DeviceMemory<'_>, rounds: u32) -> Result<(), CudaError> {
        self.arithmetic(self.chain_f64, values, rounds)
    }

    /// Begins to write a pattern over the whole memory.
    pub fn write(&self, memory: &DeviceMemory<'_>, pattern: Pattern) -> Result<(), CudaError> {
        let words = (memory.bytes() / 8) as u64;
        let [mut base, mut words, mut step, mut offset] =
            [memory.address, words, pattern.step, pattern.offset];
        self.begin(
            self.pattern_write,
            Self::sweep_blocks(words),
            &mut [
                pointer(&mut base),
                pointer(&mut words),
                pointer(&mut step),
                pointer(&mut offset),
            ],
        )
    }

    /// Begins to look for a pattern, its bits inverted by `seen`, and to leave it inverted by `left`. What is wrong is added to
    /// the [`SweepReport`] at the beginning of `report`.
    pub fn sweep(
        &self,
        memory: &DeviceMemory<'_>,
        pattern: Pattern,
        seen: u64,
        left: u64,
        report: &DeviceMemory<'_>,
    ) -> Result<(), CudaError> {
        assert!(report.bytes() >= SweepReport::BYTES);
        let words = (memory.bytes() / 8) as u64;
        let mut values = [
            memory.address,
            words,
            pattern.step,
            pattern.offset,
            seen,
            left,
            report.address,
        ];
        let mut parameters = values.each_mut().map(pointer);
        self.begin(
            self.pattern_sweep,
            Self::sweep_blocks(words),
            &mut parameters,
        )
    }

    fn sweep_blocks(words: u64) -> u32 {
        words
            .div_ceil(Self::LANES as u64)
            .clamp(1, Self::SWEEP_BLOCKS) as u32
    }

    fn arithmetic(
        &self,
        kernel: Handle,
        values: &DeviceMemory<'_>,
        rounds: u32,
    ) -> Result<(), CudaError> {
        let block = Self::LANES * Self::VALUE_BYTES;
        // Rounds are counted down to 0 after the first.
        assert!(rounds > 0 && values.bytes() > 0 && values.bytes().is_multiple_of(block));
        let blocks = u32::try_from(values.bytes() / block).expect("blocks fit a grid");
        let (mut address, mut rounds) = (values.address, rounds);
        self.begin(
            kernel,
            blocks,
            &mut [pointer(&mut address), pointer(&mut rounds)],
        )
    }

    fn begin(
        &self,
        kernel: Handle,
        blocks: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        self.context.enter()?;
        let functions = &self.context.cuda.functions;
        // SAFETY: the kernel is of this context; `parameters` points to as many live values, of such sizes, as its text declares,
        // which are read before the call returns; and it reaches no further than the memory those values tell of.
        let code = unsafe {
            (functions.launch)(
                kernel,
                blocks,
                1,
                1,
                Self::LANES as u32,
                1,
                1,
                0,
                null_mut(),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        self.context
            .cuda
            .check(|| "beginning a kernel".into(), code)
    }
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of a kernel's parameters, as its text declares them.
    fn declared(kernel: &str) -> Vec<&'static str> {
        let (_, rest) = CHECK_PTX.split_once(&format!(".entry {kernel}(")).unwrap();
        let (list, _) = rest.split_once(')').unwrap();
        list.split(',')
            .map(|one| one.split_whitespace().nth(1).unwrap())
            .collect()
    }

    #[test]
    fn kernels_are_given_what_their_text_declares() {
        for kernel in ["mix_int", "chain_f32", "chain_f64"] {
            assert_eq!(declared(kernel), [".u64", ".u32"], "{kernel}");
        }
        assert_eq!(declared("pattern_write"), [".u64"; 4]);
        assert_eq!(declared("pattern_sweep"), [".u64"; 7]);
        assert_eq!(CHECK_PTX.matches(".entry").count(), 5);
    }

    #[test]
    fn a_report_is_the_same_on_both_sides() {
        let report = SweepReport {
            wrong_words: 3,
            first: 7,
            bits: 1 << 63,
        };
        assert_eq!(SweepReport::from_bytes(&report.to_bytes()), report);
        assert_eq!(SweepReport::clean().to_bytes().len(), SweepReport::BYTES);
    }
}
