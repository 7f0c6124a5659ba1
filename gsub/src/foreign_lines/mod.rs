//! `#PBS` and `#BSUB` lines of a script, told as options of gsub.
//!
//! Owns which of these lines count and how their options are cut; `pbs` and `bsub` own what each means. What has no
//! counterpart is told; what would change the job without a word is refused. Source: sbatch(1), qsub(1B), bsub(1).

mod bsub;
mod pbs;
mod variables;

use gmodel::directive::{MAX_DIRECTIVES, MAX_LINE_BYTES, split_words};

/// As sbatch: directives count until so many lines of commands have gone by.
const MOST_COMMAND_LINES: usize = 100;

/// What one line comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignLine {
    /// From 1.
    pub line_no: u32,
    /// gsub's options, each with its value in one word.
    pub words: Vec<String>,
    /// What of the line has no counterpart.
    pub notes: Vec<String>,
}

/// A line that cannot be told: its number, its first word and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignError {
    pub line_no: u32,
    pub word: &'static str,
    pub why: String,
}

/// The batch system that a line is written for.
#[derive(Clone, Copy)]
struct Dialect {
    word: &'static str,
    /// Options of one letter that take a value.
    with_value: &'static str,
    /// Options of one letter that take none.
    flags: &'static str,
    /// Options of several letters behind one dash, and whether a value follows.
    long: &'static [(&'static str, bool)],
}

/// One option of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ForeignOption {
    name: String,
    value: String,
}

/// What lines come to so far.
trait Translate {
    /// Adds what an option comes to.
    ///
    /// # Errors
    /// The option cannot be told: what stands against it, and what would work.
    fn option(&mut self, option: &ForeignOption, told: &mut Translation) -> Result<(), String>;
}

/// The options and notes of the line in work.
#[derive(Default)]
struct Translation {
    words: Vec<String>,
    notes: Vec<String>,
}

impl Translation {
    fn flag(&mut self, name: &str) {
        self.words.push(format!("--{name}"));
    }

    /// The value stays one word with its option, whatever it begins with.
    fn set(&mut self, name: &str, value: impl std::fmt::Display) {
        self.words.push(format!("--{name}={value}"));
    }

    fn note(&mut self, text: impl std::fmt::Display) {
        self.notes.push(format!("{text} has no counterpart here"));
    }
}

/// The `#BSUB` lines of a script; the `#PBS` lines, where it has none of the former.
pub(crate) fn read(script: &str) -> Result<Vec<ForeignLine>, ForeignError> {
    let mut found = lines(script, bsub::DIALECT, &mut bsub::Bsub::default())?;
    if found.is_empty() {
        found = lines(script, pbs::DIALECT, &mut pbs::Pbs::default())?;
    }
    if let Some(first) = found.first_mut() {
        first.notes.extend(variables::notes(script));
    }
    Ok(found)
}

fn lines(
    script: &str,
    dialect: Dialect,
    translate: &mut impl Translate,
) -> Result<Vec<ForeignLine>, ForeignError> {
    let mut found = Vec::new();
    let mut commands = 0;
    for (line_no, line) in (1..).zip(script.split('\n')) {
        let Some(rest) = options_of(line, dialect.word) else {
            commands += usize::from(!line.starts_with('#'));
            if commands > MOST_COMMAND_LINES {
                break;
            }
            continue;
        };
        let refuse = |why| ForeignError {
            line_no,
            word: dialect.word,
            why,
        };
        if found.len() == MAX_DIRECTIVES || line.len() > MAX_LINE_BYTES {
            return Err(refuse(format!(
                "{MAX_DIRECTIVES} lines of {MAX_LINE_BYTES} bytes are the most"
            )));
        }
        let words = split_words(rest).map_err(|error| refuse(error.to_string()))?;
        let mut told = Translation::default();
        for option in cut(&words, dialect).map_err(refuse)? {
            translate.option(&option, &mut told).map_err(|why| {
                refuse(format!(
                    "-{}: {why}, or leave all such lines out with --ignore-pbs",
                    option.name
                ))
            })?;
        }
        let Translation { words, notes } = told;
        found.push(ForeignLine {
            line_no,
            words,
            notes,
        });
    }
    Ok(found)
}

/// What follows the directive's word, where a blank or an option does.
fn options_of<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(word)?;
    let ends = rest.is_empty() || rest.starts_with([' ', '\t', '-']);
    ends.then_some(rest)
}

/// Cuts words into options as getopt does.
fn cut(words: &[String], dialect: Dialect) -> Result<Vec<ForeignOption>, String> {
    let mut options = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let letters = word
            .strip_prefix('-')
            .filter(|letters| !letters.is_empty())
            .ok_or_else(|| format!("{word:?} is no option"))?;
        let mut value_behind = |name: &str| {
            let value = words.next().cloned();
            value.ok_or_else(|| format!("-{name} needs a value"))
        };
        if let Some((name, has_value)) = dialect.long.iter().find(|(name, _)| *name == letters) {
            options.push(ForeignOption {
                name: (*name).to_owned(),
                value: match has_value {
                    true => value_behind(name)?,
                    false => String::new(),
                },
            });
            continue;
        }
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            let name = letter.to_string();
            let value = match rest.as_str() {
                _ if dialect.flags.contains(letter) => String::new(),
                _ if !dialect.with_value.contains(letter) => {
                    return Err(format!("unknown option -{letter}"));
                }
                "" => value_behind(&name)?,
                value => value.to_owned(),
            };
            let ends = dialect.with_value.contains(letter);
            options.push(ForeignOption { name, value });
            if ends {
                break;
            }
        }
    }
    Ok(options)
}

/// A whole number above 0.
fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is not a number from 1. Write one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(lines: &str, want: Expect) {
        let shown = match read(&format!("#!/bin/sh\n{lines}\ntrue\n")) {
            Ok(lines) => lines
                .iter()
                .map(|line| {
                    let notes: String =
                        line.notes.iter().map(|note| format!(" [{note}]")).collect();
                    format!("{}: {}{notes}\n", line.line_no, line.words.join(" "))
                })
                .collect(),
            Err(error) => format!("line {}: {}: {}", error.line_no, error.word, error.why),
        };
        want.assert_eq(&shown);
    }

    #[test]
    fn pbs_lines_of_torque() {
        check(
            "#PBS -N train -q gpu@head -A vision\n#PBS -l nodes=2:ppn=4:gpus=2,walltime=1:30:00,mem=16gb\n#PBS -j oe -o node7:/tmp/out -m abe -M ann@a.org\n#PBS -t 1-10%2 -hV -r n",
            expect![[r#"
                2: --job-name=train --partition=gpu --account=vision
                3: --nodes=2 --ntasks=8 --gpus-per-node=2 --time=1:30:00 --mem=16G
                4: --output=/tmp/out --mail-type=BEGIN,END,FAIL --mail-user=ann@a.org
                5: --array=1-10%2 --hold --export=ALL --no-requeue
            "#]],
        );
        check(
            "#PBS -l nodes=n1+n2:ppn=2 -v A=1,B\n#PBS -l walltime=3600 -W depend=afterok:12:13\n#PBS -l nodes=3:ppn=8:h100:ib",
            expect![[r#"
                2: --nodes=2 --nodelist=n1,n2 --ntasks=4 --export=A=1,B
                3: --time=0:3600 --dependency=afterok:12:13
                4: --nodes=3 --ntasks=24 --constraint=h100&ib
            "#]],
        );
        check(
            "#PBS -l walltime=2:00:00:00,naccelerators=2,proc=amd,nice=5,file=10gb,vmem=1gb -p -3",
            expect![[r#"
                2: --time=2-00:00:00 --gres=gpu:2 --constraint=amd --nice=5 --tmp=10G --nice=3 [-l vmem=1gb has no counterpart here]
            "#]],
        );
        check(
            "#PBS -l accelerator=true,cput=60 -a 202612241830.15 -a 1830 -p 5 -W umask=77 -S /bin/bash",
            expect![[r#"
                2: --gres=gpu:1 --time=0:60 --begin=2026-12-24T18:30 --begin=18:30 [-p 5 has no counterpart here] [-W umask=77 has no counterpart here]
            "#]],
        );
    }

    #[test]
    fn pbs_lines_of_pbs_pro() {
        check(
            "#PBS -l select=2:ncpus=8:mpiprocs=2:ngpus=4:mem=64gb\n#PBS -l walltime=90 -l place=scatter:excl\n#PBS -J 0-9",
            expect![[r#"
                2: --nodes=2 --gpus-per-node=4 --mem=64G --ntasks-per-node=2 --cpus-per-task=4
                3: --time=0:90 --exclusive
                4: --array=0-9
            "#]],
        );
        check(
            "#PBS -lselect=1:ncpus=8\n#PBS -l ncpus=3",
            expect![[r#"
            2: --nodes=1 --ntasks-per-node=1 --cpus-per-task=8
            3: --cpus-per-task=3
        "#]],
        );
        check(
            "#PBS -l select=4:ncpus=10:mpiprocs=4:host=n7",
            expect![[r#"
                2: --nodes=4 --nodelist=n7 --ntasks-per-node=4 --mincpus=10
            "#]],
        );
    }

    #[test]
    fn bsub_lines() {
        check(
            "#BSUB -J \"sweep[1-10:2]%5\" -n 2,8 -q gpu\n#BSUB -W 2:30 -M 2048 -R \"span[ptile=4] rusage[mem=4]\"\n#BSUB -gpu \"num=2:mode=shared\" -x\n#BSUB -oo out.%J.%I -e err.%J -m \"n1 n2\" -cwd /tmp\n#BSUB -B -N -u ann@a.org -P proj\n#PBS -N not-read",
            expect![[r#"
                2: --job-name=sweep --array=1-10:2%5 --ntasks=8 --partition=gpu
                3: --time=2:30:00 --mem-per-cpu=2048K --ntasks-per-node=4 [-R rusage[mem=4] has no counterpart here]
                4: --gpus-per-node=2 --exclusive
                5: --output=out.%A.%a --error=err.%j --nodelist=n1,n2 --chdir=/tmp
                6: --mail-type=BEGIN --mail-type=BEGIN,END --mail-user=ann@a.org [-P proj has no counterpart here]
            "#]],
        );
        check(
            "#BSUB -W 90/fast -M4GB -R span[hosts=1]",
            expect![[r#"
            2: --time=90 --mem-per-cpu=4G --nodes=1
        "#]],
        );
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        let mut all = String::new();
        for line in [
            "#PBS -l nodes=1:ppn=4+2:ppn=8",
            "#PBS -l select=1:ncpus=1+2:ncpus=8",
            "#PBS -l mem=16",
            "#PBS -l walltime=soon",
            "#PBS -l nodes=0",
            "#PBS -Y",
            "#PBS -N",
            "#PBS train",
            "#PBS -N 'x",
            "#PBS -a 3112",
            "#PBS -W depend",
            "#BSUB -w done(12)",
            "#BSUB -W 1:2:3",
            "#BSUB -n ,",
            "#BSUB -M x",
            "#BSUB -gpu mode=shared",
        ] {
            let error = read(&format!("#!/bin/sh\n{line}\n"));
            all.push_str(&format!("{line}\n    {}\n", error.unwrap_err().why));
        }
        expect![[r##"
            #PBS -l nodes=1:ppn=4+2:ppn=8
                -l: "1:ppn=4+2:ppn=8" asks for nodes of different shapes. Write components: #SBATCH lines with #SBATCH hetjob between them, or leave all such lines out with --ignore-pbs
            #PBS -l select=1:ncpus=1+2:ncpus=8
                -l: "1:ncpus=1+2:ncpus=8" asks for chunks of different shapes. Write components: #SBATCH lines with #SBATCH hetjob between them, or leave all such lines out with --ignore-pbs
            #PBS -l mem=16
                -l: "16" is no size with a unit. Write 16gb or 500mb, or leave all such lines out with --ignore-pbs
            #PBS -l walltime=soon
                -l: "soon" is no time. Write seconds or HH:MM:SS, or leave all such lines out with --ignore-pbs
            #PBS -l nodes=0
                -l: "0" is not a number from 1. Write one, or leave all such lines out with --ignore-pbs
            #PBS -Y
                unknown option -Y
            #PBS -N
                -N needs a value
            #PBS train
                "train" is no option
            #PBS -N 'x
                the quote ' is not closed. Close it on the same line
            #PBS -a 3112
                -a: "3112" is no time. Write MMDDhhmm, for instance 12241830, or leave all such lines out with --ignore-pbs
            #PBS -W depend
                -W: "depend" is not NAME=VALUE. Write -W depend=afterok:12, or leave all such lines out with --ignore-pbs
            #BSUB -w done(12)
                -w: "done(12)" is a dependency in LSF's words. Write #SBATCH --dependency=afterok:JOB, or leave all such lines out with --ignore-pbs
            #BSUB -W 1:2:3
                -W: "1:2:3" is no time. Write minutes or HH:MM, or leave all such lines out with --ignore-pbs
            #BSUB -n ,
                -n: "" is not a number from 1. Write one, or leave all such lines out with --ignore-pbs
            #BSUB -M x
                -M: "x" is no size. Write 4GB, or kilobytes, or leave all such lines out with --ignore-pbs
            #BSUB -gpu mode=shared
                -gpu: "mode=shared" has no num=. Write "num=1", or leave all such lines out with --ignore-pbs
        "##]].assert_eq(&all);
    }

    #[test]
    fn lines_count_until_a_hundred_lines_of_commands() {
        let script =
            |commands: usize| format!("#!/bin/sh\n{}#PBS -N x\n", "true\n".repeat(commands));
        assert_eq!(read(&script(100)).unwrap().len(), 1);
        assert_eq!(read(&script(101)).unwrap(), []);
        assert_eq!(
            read("#!/bin/sh\n#PBSX -N x\n# PBS -N x\n #PBS -N x\n").unwrap(),
            []
        );
    }

    proptest! {
        #[test]
        fn no_value_becomes_an_option_of_its_own(text in "[ -~]{0,40}", pbs: bool) {
            let word = if pbs { "#PBS" } else { "#BSUB" };
            for line in read(&format!("#!/bin/sh\n{word} {text}\n")).unwrap_or_default() {
                for word in &line.words {
                    prop_assert!(word.starts_with("--"), "{word}");
                }
            }
        }
    }
}
