//! The fence as a BPF program: assembling it and the five bpf(2) commands it takes. No library, no map, no helper call.
//! Source: include/uapi/linux/bpf.h and Documentation/bpf/standardization/instruction-set.rst.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::fence::{Fence, FenceError, FenceTag};
use super::rules::{DeviceRule, FenceRules};

/// struct bpf_insn.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the low four bits, source in the high four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Opcodes: class | size-or-operation | source.
const LOAD_U32: u8 = 0x61; // BPF_LDX | BPF_W | BPF_MEM
const AND_IMM: u8 = 0x57; // BPF_ALU64 | BPF_AND | BPF_K
const MOV_IMM: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
const JUMP_EQ_IMM: u8 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_NE_IMM: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT

// Registers: r0 is the answer, r1 the context on entry.
const ANSWER: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const MAJOR: u8 = 3;
const MINOR: u8 = 4;

/// struct bpf_cgroup_dev_ctx { access_type, major, minor }, u32 each; the device's kind is in the low half of the first.
const CONTEXT_KIND: i16 = 0;
const CONTEXT_MAJOR: i16 = 4;
const CONTEXT_MINOR: i16 = 8;
const KIND_CHAR: i32 = 2; // BPF_DEVCG_DEV_CHAR

/// Asked for every open and mknod of a device by a member: 1 permits, 0 is EPERM. All kinds of access are judged alike.
pub(super) fn program_of(rules: &FenceRules) -> Vec<Instruction> {
    let default = if rules.default_deny { 0 } else { 1 };
    let mut code = vec![
        read_context(KIND, CONTEXT_KIND),
        Instruction {
            code: AND_IMM,
            registers: KIND,
            offset: 0,
            immediate: 0xffff,
        },
        read_context(MAJOR, CONTEXT_MAJOR),
        read_context(MINOR, CONTEXT_MINOR),
        // A character device skips the answer that every other device gets.
        Instruction {
            code: JUMP_EQ_IMM,
            registers: KIND,
            offset: 2,
            immediate: KIND_CHAR,
        },
    ];
    code.extend(answer(default));
    for rule in &rules.allow {
        code.extend(answer_if(rule, 1));
    }
    for rule in &rules.deny {
        code.extend(answer_if(rule, 0));
    }
    code.extend(answer(default));
    code
}

fn read_context(register: u8, offset: i16) -> Instruction {
    Instruction {
        code: LOAD_U32,
        registers: register | CONTEXT << 4,
        offset,
        immediate: 0,
    }
}

fn answer(value: i32) -> [Instruction; 2] {
    [
        Instruction {
            code: MOV_IMM,
            registers: ANSWER,
            offset: 0,
            immediate: value,
        },
        Instruction {
            code: EXIT,
            registers: 0,
            offset: 0,
            immediate: 0,
        },
    ]
}

fn answer_if(rule: &DeviceRule, value: i32) -> Vec<Instruction> {
    let unless = |register, immediate: u32, offset| Instruction {
        code: JUMP_NE_IMM,
        registers: register,
        offset,
        immediate: immediate as i32,
    };
    let mut code = match rule.minor {
        Some(minor) => vec![unless(MAJOR, rule.major, 3), unless(MINOR, minor, 2)],
        None => vec![unless(MAJOR, rule.major, 2)],
    };
    code.extend(answer(value));
    code
}

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_ATTACH: i32 = 8;
const BPF_PROG_GET_FD_BY_ID: i32 = 13;
const BPF_OBJ_GET_INFO_BY_FD: i32 = 15;
const BPF_PROG_QUERY: i32 = 16;

const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 1 << 1;
const BPF_F_REPLACE: u32 = 1 << 2;

/// More device programs than this on one cgroup are an error of the machine.
const QUERY_BOUND: usize = 64;

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

fn try_load(code: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log_buf: if log.is_empty() {
            0
        } else {
            log.as_mut_ptr() as u64
        },
        ..LoadAttr::default()
    };
    attr.prog_name[..13].copy_from_slice(b"gpupool_fence");
    // SAFETY: the attribute's pointers lead to `code`, a static string and `log`, which outlive the call.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr) }
}

/// Loads a program; it lives as long as a descriptor or an attachment of it.
pub(super) fn load(code: &[Instruction]) -> Result<OwnedFd, FenceError> {
    try_load(code, &mut []).map_err(|source| {
        // Once more for the verifier's words; without a refusal by the verifier the log stays empty.
        let mut log = vec![0u8; 16 * 1024];
        let _ = try_load(code, &mut log);
        let text = String::from_utf8_lossy(&log);
        let last = text
            .trim_end_matches('\0')
            .lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("")
            .to_owned();
        let log = if last.is_empty() {
            "bpf(BPF_PROG_LOAD)".into()
        } else {
            last
        };
        FenceError::Load { log, source }
    })
}

/// A program that is in the kernel, and what it is there.
pub(super) struct LoadedProgram {
    pub program: OwnedFd,
    pub fence: Fence,
}

/// So many are kept: one for each set of GPUs that runs were given.
const KEPT_PROGRAMS: usize = 64;

/// As [`load`], but a program that was loaded before is used again: it never changes, the cgroups it is attached to have
/// nothing else in common, and most runs of a node are given one of a few sets of GPUs.
pub(super) fn kept(code: Vec<Instruction>) -> Result<Arc<LoadedProgram>, FenceError> {
    static KEPT: Mutex<Vec<(Vec<Instruction>, Arc<LoadedProgram>)>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, loaded)) = kept.iter().find(|(of, _)| *of == code) {
        return Ok(Arc::clone(loaded));
    }
    let program = load(&code)?;
    let loaded = Arc::new(LoadedProgram {
        fence: info(&program)?,
        program,
    });
    if kept.len() == KEPT_PROGRAMS {
        kept.remove(0);
    }
    kept.push((code, Arc::clone(&loaded)));
    Ok(loaded)
}

#[repr(C)]
#[derive(Default)]
struct AttachAttr {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
}

/// Attaches to the cgroup beside others, or in the place of `replaced`.
pub(super) fn attach(dir: &File, program: &OwnedFd, replaced: Option<&OwnedFd>) -> io::Result<()> {
    let mut attr = AttachAttr {
        target_fd: dir.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: BPF_F_ALLOW_MULTI | if replaced.is_some() { BPF_F_REPLACE } else { 0 },
        replace_bpf_fd: replaced.map_or(0, |p| p.as_raw_fd() as u32),
    };
    // SAFETY: the attribute holds descriptors and numbers only.
    unsafe { bpf(BPF_PROG_ATTACH, &mut attr) }.map(|_| ())
}

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// The programs attached to exactly this cgroup.
pub(super) fn query(cgroup_dir: &Path) -> Result<Vec<Fence>, FenceError> {
    let mut fences = Vec::new();
    for id in attached(&open_dir(cgroup_dir)?, cgroup_dir)? {
        match program_by_id(id) {
            Ok(program) => fences.push(info(&program)?),
            // Detached and gone between the two calls.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(FenceError::at("opening a program of", cgroup_dir, e)),
        }
    }
    Ok(fences)
}

/// The numbers of the programs attached to exactly this cgroup, which is `dir`.
pub(super) fn attached(dir: &File, cgroup_dir: &Path) -> Result<Vec<u32>, FenceError> {
    let mut ids = [0u32; QUERY_BOUND];
    let mut attr = QueryAttr {
        target_fd: dir.as_raw_fd() as u32,
        attach_type: BPF_CGROUP_DEVICE,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        ..QueryAttr::default()
    };
    // SAFETY: prog_ids leads to `ids` with prog_cnt entries; it outlives the call.
    unsafe { bpf(BPF_PROG_QUERY, &mut attr) }
        .map_err(|e| FenceError::at("asking for the programs of", cgroup_dir, e))?;
    Ok(ids[..(attr.prog_cnt as usize).min(QUERY_BOUND)].to_vec())
}

#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

pub(super) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr {
        id,
        ..IdAttr::default()
    };
    // SAFETY: the attribute holds numbers only.
    unsafe { bpf_fd(BPF_PROG_GET_FD_BY_ID, &mut attr) }
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first fields of struct bpf_prog_info; the kernel fills as many bytes as it is given room for.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
}

pub(super) fn info(program: &OwnedFd) -> Result<Fence, FenceError> {
    let mut info = ProgramInfo::default();
    let mut attr = InfoAttr {
        bpf_fd: program.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfo>() as u32,
        info: &raw mut info as u64,
    };
    // SAFETY: info leads to a struct of info_len bytes that outlives the call.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map_err(|source| FenceError::Load {
        log: "reading the program's tag".into(),
        source,
    })?;
    Ok(Fence {
        program_id: info.id,
        tag: FenceTag(info.tag),
    })
}

pub(super) fn open_dir(dir: &Path) -> Result<File, FenceError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(dir);
    opened.map_err(|e| FenceError::at("opening", dir, e))
}

/// # Safety
/// Pointers inside `attr` must be what `command` expects and outlive the call.
unsafe fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i64> {
    // SAFETY: attr is a live struct of the given size; its inner pointers are the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr as *mut T, size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// # Safety
/// As [`bpf`], for a command that returns a new descriptor.
unsafe fn bpf_fd<T>(command: i32, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: passed on to the caller.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just made this descriptor, and nothing else names it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_fence::DeviceNumber;

    /// Runs the program as the kernel would: the answer for a device.
    fn run(code: &[Instruction], kind: u32, device: DeviceNumber) -> i32 {
        let mut registers = [0u64; 11];
        let mut at = 0usize;
        loop {
            let insn = code[at];
            let (dst, src) = (
                (insn.registers & 15) as usize,
                (insn.registers >> 4) as usize,
            );
            at += 1;
            match insn.code {
                LOAD_U32 => {
                    assert_eq!(src, CONTEXT as usize);
                    registers[dst] = match insn.offset {
                        CONTEXT_KIND => u64::from(6 << 16 | kind),
                        CONTEXT_MAJOR => u64::from(device.major),
                        CONTEXT_MINOR => u64::from(device.minor),
                        other => panic!("offset {other} is outside the context"),
                    }
                }
                AND_IMM => registers[dst] &= insn.immediate as i64 as u64,
                MOV_IMM => registers[dst] = insn.immediate as i64 as u64,
                JUMP_NE_IMM if registers[dst] != insn.immediate as i64 as u64 => {
                    at += insn.offset as usize
                }
                JUMP_NE_IMM => {}
                JUMP_EQ_IMM if registers[dst] == insn.immediate as i64 as u64 => {
                    at += insn.offset as usize
                }
                JUMP_EQ_IMM => {}
                EXIT => return registers[0] as i32,
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    #[test]
    fn the_program_says_what_the_rules_say() {
        let rule = |major, minor| DeviceRule { major, minor };
        for default_deny in [false, true] {
            let rules = FenceRules {
                allow: vec![rule(195, Some(2)), rule(136, None)],
                deny: vec![rule(195, None), rule(226, Some(129)), rule(136, Some(1))],
                default_deny,
            };
            let code = program_of(&rules);
            for major in [0, 1, 136, 195, 226, 4095] {
                for minor in [0, 1, 2, 128, 129, (1 << 20) - 1] {
                    let device = DeviceNumber { major, minor };
                    assert_eq!(
                        run(&code, 2, device) == 1,
                        rules.permits(device),
                        "{device:?} {default_deny}"
                    );
                    assert_eq!(
                        run(&code, 1, device) == 1,
                        !default_deny,
                        "block {device:?}"
                    );
                }
            }
        }
    }
}
