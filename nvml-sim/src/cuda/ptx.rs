//! Reading PTX: the part of it that gpupool's kernels are written in, into instructions over numbered registers. What is outside of
//! that part is refused with its line, never guessed: a kernel that is read means here what it means to a GPU.
//! Source: NVIDIA, Parallel Thread Execution ISA.

use std::collections::BTreeMap;

/// One kernel, ready to be carried out.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub name: String,
    /// Bytes of each parameter, in order.
    pub parameters: Vec<usize>,
    pub registers: usize,
    pub code: Vec<Line>,
}

/// An instruction, and the predicate it waits for: a register, and whether it must be false.
#[derive(Clone, Debug)]
pub struct Line {
    pub only_if: Option<(usize, bool)>,
    pub what: Instruction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Bits32,
    Bits64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Register(usize),
    Value(u64),
    Special(Special),
}

/// Where a thread is; the first of three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Thread,
    Block,
    Threads,
    Blocks,
}

/// A place in global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub register: usize,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    MulLow,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    Add,
    Min,
    Or,
}

/// Integers are unsigned. A result of 32 bits leaves the upper half of its register zero.
#[derive(Clone, Debug)]
pub enum Instruction {
    /// Also between kinds of registers of one width, and to another width.
    Copy {
        to: usize,
        from: Operand,
        width: Width,
    },
    Parameter {
        to: usize,
        number: usize,
    },
    Load {
        to: usize,
        place: Place,
        width: Width,
    },
    Store {
        place: Place,
        from: Operand,
        width: Width,
    },
    Binary {
        what: Binary,
        to: usize,
        a: Operand,
        b: Operand,
        width: Width,
    },
    MulAdd {
        to: usize,
        a: Operand,
        b: Operand,
        c: Operand,
        width: Width,
    },
    /// 32 bits by 32 to 64.
    MulWide {
        to: usize,
        a: Operand,
        b: Operand,
    },
    FusedMulAdd {
        to: usize,
        a: Operand,
        b: Operand,
        c: Operand,
        width: Width,
    },
    Compare {
        to: usize,
        how: Comparison,
        a: Operand,
        b: Operand,
        width: Width,
    },
    Atomic {
        what: Atomic,
        to: usize,
        place: Place,
        value: Operand,
    },
    Branch {
        to: usize,
    },
    Return,
}

/// All kernels of a text.
pub fn read(text: &str) -> Result<Vec<Kernel>, String> {
    let text: String = text
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect::<Vec<_>>()
        .join("\n");
    let mut rest = text.as_str();
    let mut kernels = Vec::new();
    let head = rest.split_once(".visible").map_or(rest, |(head, _)| head);
    check_head(head)?;
    rest = &rest[head.len()..];
    while let Some(after) = rest.trim_start().strip_prefix(".visible") {
        let after = after
            .trim_start()
            .strip_prefix(".entry")
            .ok_or("a .visible that is no .entry")?;
        let (name, after) = after
            .split_once('(')
            .ok_or("an .entry without parameters")?;
        let (parameters, after) = after.split_once(')').ok_or("parameters without an end")?;
        let body = after
            .trim_start()
            .strip_prefix('{')
            .ok_or("a kernel without a body")?;
        let (body, after) = body.split_once('}').ok_or("a body without an end")?;
        let kernel = Reader::kernel(name.trim(), parameters, body)
            .map_err(|e| format!("{}: {e}", name.trim()))?;
        kernels.push(kernel);
        rest = after;
    }
    if !rest.trim().is_empty() {
        return Err(format!(
            "not understood: {:?}",
            rest.trim().lines().next().unwrap_or("")
        ));
    }
    Ok(kernels)
}

fn check_head(head: &str) -> Result<(), String> {
    let words: Vec<&str> = head.split_whitespace().collect();
    match words[..] {
        [
            ".version",
            version,
            ".target",
            target,
            ".address_size",
            "64",
        ] if version.contains('.') && target.starts_with("sm_") => Ok(()),
        _ => Err(format!(
            "wanted .version, .target and .address_size 64, found {words:?}"
        )),
    }
}

/// What is known while a body is read.
#[derive(Default)]
struct Reader {
    parameters: BTreeMap<String, (usize, usize)>,
    /// By name: the number, and the bits it was declared with (1: a predicate).
    registers: BTreeMap<String, (usize, u32)>,
    labels: BTreeMap<String, usize>,
    /// Branches; the label may come later.
    branches: Vec<(usize, String)>,
    code: Vec<Line>,
}

impl Reader {
    fn kernel(name: &str, parameters: &str, body: &str) -> Result<Kernel, String> {
        let mut reader = Reader::default();
        let mut sizes = Vec::new();
        for one in parameters.split(',') {
            let words: Vec<&str> = one.split_whitespace().collect();
            let [".param", kind, name] = words[..] else {
                return Err(format!("parameter {one:?}"));
            };
            let bytes = (bits_of(kind)? / 8) as usize;
            reader
                .parameters
                .insert(name.to_owned(), (sizes.len(), bytes));
            sizes.push(bytes);
        }
        let mut statements: Vec<&str> = body.split(';').collect();
        let last = statements.pop().unwrap_or("");
        if !last.trim().is_empty() {
            return Err(format!("no ; behind {:?}", last.trim()));
        }
        for statement in statements {
            reader
                .statement(statement.trim())
                .map_err(|e| format!("`{}`: {e}", statement.trim().lines().last().unwrap_or("")))?;
        }
        for (at, label) in std::mem::take(&mut reader.branches) {
            let target = *reader
                .labels
                .get(&label)
                .ok_or_else(|| format!("no label {label}"))?;
            reader.code[at].what = Instruction::Branch { to: target };
        }
        if !matches!(
            reader.code.last(),
            Some(Line {
                only_if: None,
                what: Instruction::Return | Instruction::Branch { .. }
            })
        ) {
            return Err("it runs on beyond its end".into());
        }
        Ok(Kernel {
            name: name.to_owned(),
            parameters: sizes,
            registers: reader.registers.len(),
            code: reader.code,
        })
    }

    fn statement(&mut self, mut text: &str) -> Result<(), String> {
        while let Some((label, rest)) = text.split_once(':') {
            if self
                .labels
                .insert(label.trim().to_owned(), self.code.len())
                .is_some()
            {
                return Err(format!("two labels {label}"));
            }
            text = rest.trim();
        }
        if let Some(declared) = text.strip_prefix(".reg") {
            return self.declare(declared);
        }
        let (only_if, text) = self.predicate(text)?;
        let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands: Vec<&str> = operands
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty())
            .collect();
        let what = self.instruction(name, &operands)?;
        self.code.push(Line { only_if, what });
        Ok(())
    }

    /// `.b32 %r<8>`
    fn declare(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [kind, names] = words[..] else {
            return Err("one kind and one name with <N> is what is understood".into());
        };
        let (name, count) = names
            .strip_suffix('>')
            .and_then(|names| names.split_once('<'))
            .ok_or("a name with <N>")?;
        let count: usize = count.parse().map_err(|_| "a number in <>")?;
        let bits = if kind == ".pred" { 1 } else { bits_of(kind)? };
        for at in 0..count {
            let number = self.registers.len();
            if self
                .registers
                .insert(format!("{name}{at}"), (number, bits))
                .is_some()
            {
                return Err(format!("{name}{at} is declared twice"));
            }
        }
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn predicate<'t>(&self, text: &'t str) -> Result<(Option<(usize, bool)>, &'t str), String> {
        let Some(rest) = text.strip_prefix('@') else {
            return Ok((None, text));
        };
        let (name, rest) = rest
            .split_once(char::is_whitespace)
            .ok_or("a predicate and nothing behind it")?;
        let (name, negated) = name
            .strip_prefix('!')
            .map_or((name, false), |name| (name, true));
        Ok((Some((self.register(name, 1)?, negated)), rest.trim()))
    }

    fn instruction(&mut self, name: &str, operands: &[&str]) -> Result<Instruction, String> {
        use Width::{Bits32, Bits64};
        let parts: Vec<&str> = name.split('.').collect();
        let outside = || {
            format!(
                "{name} with {} operands is outside of what is simulated",
                operands.len()
            )
        };
        Ok(match (&parts[..], operands) {
            (["ret"], []) => Instruction::Return,
            (["bra"], [label]) => {
                self.branches.push((self.code.len(), (*label).to_owned()));
                Instruction::Return
            }
            (["mov", kind], [to, from]) => {
                let width = width_of(kind)?;
                Instruction::Copy {
                    to: self.target(to, width)?,
                    from: self.operand(from, width)?,
                    width,
                }
            }
            (["cvta", "to", "global", "u64"], [to, from]) => Instruction::Copy {
                to: self.target(to, Bits64)?,
                from: self.operand(from, Bits64)?,
                width: Bits64,
            },
            (["cvt", "u32", "u64"], [to, from]) => Instruction::Copy {
                to: self.target(to, Bits32)?,
                from: self.operand(from, Bits64)?,
                width: Bits32,
            },
            (["cvt", "u64", "u32"], [to, from]) => Instruction::Copy {
                to: self.target(to, Bits64)?,
                from: self.operand(from, Bits32)?,
                width: Bits32,
            },
            (["ld", "param", kind], [to, from]) => self.parameter(width_of(kind)?, to, from)?,
            (["ld", "global", kind], [to, from]) => {
                let width = width_of(kind)?;
                Instruction::Load {
                    to: self.target(to, width)?,
                    place: self.place(from)?,
                    width,
                }
            }
            (["st", "global", kind], [to, from]) => {
                let width = width_of(kind)?;
                Instruction::Store {
                    place: self.place(to)?,
                    from: self.operand(from, width)?,
                    width,
                }
            }
            (["mul", "wide", "u32"], [to, a, b]) => Instruction::MulWide {
                to: self.target(to, Bits64)?,
                a: self.operand(a, Bits32)?,
                b: self.operand(b, Bits32)?,
            },
            (["mad", "lo", kind @ ("u32" | "u64")], [to, a, b, c]) => {
                let width = width_of(kind)?;
                Instruction::MulAdd {
                    to: self.target(to, width)?,
                    a: self.operand(a, width)?,
                    b: self.operand(b, width)?,
                    c: self.operand(c, width)?,
                    width,
                }
            }
            (["fma", "rn", kind @ ("f32" | "f64")], [to, a, b, c]) => {
                let width = width_of(kind)?;
                Instruction::FusedMulAdd {
                    to: self.target(to, width)?,
                    a: self.operand(a, width)?,
                    b: self.operand(b, width)?,
                    c: self.operand(c, width)?,
                    width,
                }
            }
            (["setp", how, kind @ ("u32" | "u64")], [to, a, b]) => {
                let width = width_of(kind)?;
                let how = comparison(how).ok_or_else(outside)?;
                Instruction::Compare {
                    to: self.register(to, 1)?,
                    how,
                    a: self.operand(a, width)?,
                    b: self.operand(b, width)?,
                    width,
                }
            }
            (["atom", "global", what, "u64" | "b64"], [to, place, value]) => {
                let what = match *what {
                    "add" => Atomic::Add,
                    "min" => Atomic::Min,
                    "or" => Atomic::Or,
                    _ => return Err(outside()),
                };
                Instruction::Atomic {
                    what,
                    to: self.target(to, Bits64)?,
                    place: self.place(place)?,
                    value: self.operand(value, Bits64)?,
                }
            }
            ([what @ .., kind], [to, a, b]) => {
                self.binary(binary(what, kind).ok_or_else(outside)?, kind, [to, a, b])?
            }
            _ => return Err(outside()),
        })
    }

    fn binary(
        &self,
        what: Binary,
        kind: &str,
        [to, a, b]: [&str; 3],
    ) -> Result<Instruction, String> {
        let width = width_of(kind)?;
        // How far a shift goes is always told in 32 bits.
        let shift = matches!(what, Binary::ShiftLeft | Binary::ShiftRight);
        let b = self.operand(b, if shift { Width::Bits32 } else { width })?;
        Ok(Instruction::Binary {
            what,
            to: self.target(to, width)?,
            a: self.operand(a, width)?,
            b,
            width,
        })
    }

    fn parameter(&self, width: Width, to: &str, from: &str) -> Result<Instruction, String> {
        let name = from
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .ok_or("[NAME] of a parameter")?;
        let (number, bytes) = *self
            .parameters
            .get(name)
            .ok_or_else(|| format!("no parameter {name}"))?;
        if bytes as u32 * 8 != width.bits() {
            return Err(format!("{name} has {bytes} bytes"));
        }
        Ok(Instruction::Parameter {
            to: self.target(to, width)?,
            number,
        })
    }

    /// `[%d1]`, `[%d1+8]`
    fn place(&self, text: &str) -> Result<Place, String> {
        let inner = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .ok_or("[ADDRESS]")?;
        let (name, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        Ok(Place {
            register: self.register(name.trim(), 64)?,
            offset: number(offset.trim()).ok_or("an offset")?,
        })
    }

    fn operand(&self, text: &str, width: Width) -> Result<Operand, String> {
        let special = match text {
            "%tid.x" => Some(Special::Thread),
            "%ctaid.x" => Some(Special::Block),
            "%ntid.x" => Some(Special::Threads),
            "%nctaid.x" => Some(Special::Blocks),
            _ => None,
        };
        if let Some(special) = special {
            return if width == Width::Bits32 {
                Ok(Operand::Special(special))
            } else {
                Err(format!("{text} has 32 bits"))
            };
        }
        if text.starts_with('%') {
            return self.register(text, width.bits()).map(Operand::Register);
        }
        let value = number(text).ok_or_else(|| format!("{text} is no number"))?;
        if width == Width::Bits32 && value > u64::from(u32::MAX) {
            return Err(format!("{text} does not fit 32 bits"));
        }
        Ok(Operand::Value(value))
    }

    fn target(&self, name: &str, width: Width) -> Result<usize, String> {
        self.register(name, width.bits())
    }

    fn register(&self, name: &str, bits: u32) -> Result<usize, String> {
        let (number, declared) = *self
            .registers
            .get(name)
            .ok_or_else(|| format!("no register {name}"))?;
        if declared == bits {
            Ok(number)
        } else {
            Err(format!("{name} has {declared} bits, not {bits}"))
        }
    }
}

impl Width {
    pub fn bits(self) -> u32 {
        match self {
            Width::Bits32 => 32,
            Width::Bits64 => 64,
        }
    }

    pub fn bytes(self) -> usize {
        self.bits() as usize / 8
    }
}

fn bits_of(kind: &str) -> Result<u32, String> {
    match kind.trim_start_matches('.') {
        "u32" | "b32" | "f32" => Ok(32),
        "u64" | "b64" | "f64" => Ok(64),
        _ => Err(format!("{kind} is outside of what is simulated")),
    }
}

fn width_of(kind: &str) -> Result<Width, String> {
    bits_of(kind).map(|bits| {
        if bits == 32 {
            Width::Bits32
        } else {
            Width::Bits64
        }
    })
}

fn comparison(word: &str) -> Option<Comparison> {
    Some(match word {
        "eq" => Comparison::Equal,
        "ne" => Comparison::NotEqual,
        "lt" => Comparison::Less,
        "le" => Comparison::LessOrEqual,
        "gt" => Comparison::Greater,
        "ge" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn binary(what: &[&str], kind: &str) -> Option<Binary> {
    let integer = kind.starts_with('u');
    let bits = kind.starts_with('b');
    Some(match what {
        ["add"] if integer => Binary::Add,
        ["sub"] if integer => Binary::Sub,
        ["mul", "lo"] if integer => Binary::MulLow,
        ["and"] if bits => Binary::And,
        ["or"] if bits => Binary::Or,
        ["xor"] if bits => Binary::Xor,
        ["shl"] if bits => Binary::ShiftLeft,
        ["shr"] if integer => Binary::ShiftRight,
        _ => return None,
    })
}

/// Decimal, hexadecimal, or the bits of a floating point number (`0f3F800000`, `0d3FF0000000000000`).
fn number(text: &str) -> Option<u64> {
    let digits = |prefix: &str, length: usize| {
        text.strip_prefix(prefix)
            .filter(|digits| length == 0 || digits.len() == length)
    };
    if let Some(digits) = digits("0f", 8)
        .or_else(|| digits("0d", 16))
        .or_else(|| digits("0x", 0))
    {
        return u64::from_str_radix(digits, 16).ok();
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_body(body: &str) -> Result<Vec<Kernel>, String> {
        read(&format!(
            ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{ .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<3>;\n{body}\n}}"
        ))
    }

    #[test]
    fn what_is_outside_of_the_subset_is_refused_with_its_line() {
        assert!(read_body("ret;").is_ok());
        for (body, words) in [
            (
                "bar.sync 0;\nret;",
                "`bar.sync 0`: bar.sync with 1 operands is outside",
            ),
            (
                "add.s32 %r1, %r1, %r2;\nret;",
                "add.s32 with 3 operands is outside",
            ),
            (
                "mad.hi.u32 %r1, %r1, %r2, 0;\nret;",
                "mad.hi.u32 with 4 operands is outside",
            ),
            (
                "fma.rz.f32 %r1, %r1, %r2, %r2;\nret;",
                "fma.rz.f32 with 4 operands is outside",
            ),
            ("add.u64 %d1, %d1, %r1;\nret;", "%r1 has 32 bits, not 64"),
            ("mov.u32 %r9, 1;\nret;", "no register %r9"),
            ("ld.global.u64 %d1, [%r1];\nret;", "%r1 has 32 bits"),
            ("mov.u32 %r1, %clock;\nret;", "no register %clock"),
            ("@%p1 bra NOWHERE;\nret;", "no label NOWHERE"),
            ("mov.u32 %r1, 1;", "runs on beyond its end"),
            ("ret", "no ; behind"),
        ] {
            let error = read_body(body).unwrap_err();
            assert!(error.contains(words), "{body}: {error}");
        }
        assert!(read(".version 6.0\n.target sm_50\n.address_size 32\n").is_err());
        assert!(read(".version 6.0\n.target sm_50\n.address_size 64\n.global .u32 x;\n").is_err());
    }

    #[test]
    fn the_kernels_of_the_checks_are_read_whole() {
        let kernels = read(gsys::cuda::CHECK_PTX).unwrap();
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "mix_int",
                "chain_f32",
                "chain_f64",
                "pattern_write",
                "pattern_sweep"
            ]
        );
        assert_eq!(kernels[4].parameters, [8; 7]);
        assert_eq!(kernels[0].parameters, [8, 4]);
    }
}
