//! The machine's processors: the threads of each core, the memory node of each core, and the choice of processors for a run.
//!
//! Reads /sys/devices/system and the affinity of threads; chooses, and binds a thread only on request.
//! Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-node, cpuset(7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// Where the kernel tells of processors and memory nodes.
pub const SYSTEM: &str = "/sys/devices/system";

/// Every processor that is on, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: BTreeMap<u32, CpuPlace>,
    /// Bytes of each memory node.
    mem_bytes: BTreeMap<u32, u64>,
    /// Distances between memory nodes, as the firmware tells; 10 is the node itself.
    distances: BTreeMap<(u32, u32), u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuPlace {
    /// The lowest processor of its core.
    core: u32,
    node: u32,
}

/// What a run asks for.
#[derive(Clone, Debug, Default)]
pub struct CpuWish {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// The memory node of each of its GPUs.
    pub near: Vec<u32>,
}

/// Processors and memory nodes of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuShare {
    pub cpus: Vec<u32>,
    /// Empty: all there are.
    pub mems: Vec<u32>,
}

impl CpuTopology {
    /// Reads what is on now; `system` is [`SYSTEM`], or stands for it.
    ///
    /// # Errors
    /// The kernel does not tell which processors there are.
    pub fn read(system: &Path) -> io::Result<Self> {
        let text = |path: &str| fs::read_to_string(system.join(path));
        let online = parse_list(&text("cpu/online")?);
        let mut topology = Self::default();
        for node in text("node/online").map_or(Vec::new(), |list| parse_list(&list)) {
            let meminfo = text(&format!("node/node{node}/meminfo")).unwrap_or_default();
            topology.mem_bytes.insert(node, mem_total_bytes(&meminfo));
            let row = text(&format!("node/node{node}/distance")).unwrap_or_default();
            let row = row
                .split_whitespace()
                .filter_map(|number| number.parse().ok());
            topology
                .distances
                .extend(row.enumerate().map(|(to, far)| ((node, to as u32), far)));
            for cpu in text(&format!("node/node{node}/cpulist"))
                .map_or(Vec::new(), |list| parse_list(&list))
            {
                topology.cpus.insert(cpu, CpuPlace { core: cpu, node });
            }
        }
        topology.cpus.retain(|cpu, _| online.contains(cpu));
        for cpu in online {
            let place = topology.cpus.entry(cpu).or_default();
            let siblings = text(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
            place.core = siblings
                .ok()
                .and_then(|list| parse_list(&list).first().copied())
                .unwrap_or(cpu);
        }
        Ok(topology)
    }

    pub fn len(&self) -> usize {
        self.cpus.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// Only these processors and memory nodes; an empty list is no bound.
    pub fn within(mut self, cpus: &[u32], mems: &[u32]) -> Self {
        self.cpus
            .retain(|cpu, _| cpus.is_empty() || cpus.contains(cpu));
        self.mem_bytes
            .retain(|node, _| mems.is_empty() || mems.contains(node));
        self
    }

    /// The processors of a memory node.
    pub fn cpus_of(&self, node: u32) -> Vec<u32> {
        self.cpus
            .iter()
            .filter(|(_, place)| place.node == node)
            .map(|(cpu, _)| *cpu)
            .collect()
    }

    /// The memory nodes of these processors.
    pub fn nodes_of(&self, cpus: &[u32]) -> BTreeSet<u32> {
        cpus.iter()
            .filter_map(|cpu| self.cpus.get(cpu))
            .map(|place| place.node)
            .collect()
    }

    /// The cores of these processors, each with the processors that are in the set.
    pub fn cores_of(&self, cpus: &[u32]) -> Vec<Vec<u32>> {
        let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in cpus {
            cores
                .entry(self.cpus.get(cpu).map_or(*cpu, |place| place.core))
                .or_default()
                .push(*cpu);
        }
        cores.into_values().collect()
    }

    /// Processors for a run beside those that are `taken`: near its GPUs, else together on one memory node, whole cores
    /// first. `promised` are bytes of each memory node that others may fill. `None` when too few are left.
    pub fn choose(
        &self,
        wish: &CpuWish,
        taken: &BTreeSet<u32>,
        promised: &BTreeMap<u32, u64>,
    ) -> Option<CpuShare> {
        let mut free: BTreeSet<u32> = self
            .cpus
            .keys()
            .filter(|cpu| !taken.contains(cpu))
            .copied()
            .collect();
        let wanted = wish.cpus.max(1) as usize;
        if free.len() < wanted {
            return None;
        }
        let mut cpus = Vec::with_capacity(wanted);
        for (node, most) in self.portions(wish, &free) {
            let count = most.min(wanted - cpus.len());
            cpus.extend(self.take(&mut free, node, count));
        }
        cpus.sort_unstable();
        let mems = self.memory_for(&cpus, wish, promised);
        Some(CpuShare { cpus, mems })
    }

    /// Memory nodes in the order of preference, with the most that each gives.
    fn portions(&self, wish: &CpuWish, free: &BTreeSet<u32>) -> Vec<(u32, usize)> {
        let wanted = wish.cpus.max(1) as usize;
        let mut free_of: BTreeMap<u32, usize> = BTreeMap::new();
        for cpu in free {
            *free_of.entry(self.cpus[cpu].node).or_default() += 1;
        }
        let mut gpus_of: BTreeMap<u32, usize> = BTreeMap::new();
        for node in wish.near.iter().filter(|node| free_of.contains_key(node)) {
            *gpus_of.entry(*node).or_default() += 1;
        }
        let gpus: usize = gpus_of.values().sum();
        let mut portions: Vec<(u32, usize)> = gpus_of
            .iter()
            .map(|(node, here)| (*node, (wanted * here).div_ceil(gpus)))
            .collect();
        // What the near ones cannot give: the smallest node that can give all, else the largest first; by distance
        // from the GPUs where there are any.
        let mut rest: Vec<(u32, usize)> = free_of.into_iter().collect();
        rest.sort_by_key(|(node, free)| {
            let far = wish
                .near
                .iter()
                .map(|near| self.distance(*near, *node))
                .min()
                .unwrap_or(0);
            let fits = *free >= wanted;
            (
                far,
                !fits,
                if fits { *free } else { usize::MAX - *free },
                *node,
            )
        });
        portions.extend(rest);
        portions
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        self.distances
            .get(&(from, to))
            .copied()
            .unwrap_or(if from == to { 10 } else { 20 })
    }

    /// Whole cores first, then free processors of cores that other runs use, then a part of a free core.
    fn take(&self, free: &mut BTreeSet<u32>, node: u32, count: usize) -> Vec<u32> {
        let here: Vec<u32> = free
            .iter()
            .filter(|cpu| self.cpus[cpu].node == node)
            .copied()
            .collect();
        let whole_size = |core: &Vec<u32>| {
            self.cpus
                .values()
                .filter(|place| place.core == self.cpus[&core[0]].core)
                .count()
        };
        let (whole, mut broken): (Vec<_>, Vec<_>) = self
            .cores_of(&here)
            .into_iter()
            .partition(|core| core.len() == whole_size(core));
        let mut taken: Vec<u32> = Vec::new();
        let mut left = Vec::new();
        for core in whole {
            match core.len() <= count - taken.len() {
                true => taken.extend(core),
                false => left.push(core),
            }
        }
        broken.sort_by_key(Vec::len);
        taken.extend(
            broken
                .into_iter()
                .chain(left)
                .flatten()
                .take(count - taken.len())
                .collect::<Vec<_>>(),
        );
        taken.iter().for_each(|cpu| {
            free.remove(cpu);
        });
        taken
    }

    /// The memory nodes of the processors, and further ones until the run's memory finds room.
    fn memory_for(&self, cpus: &[u32], wish: &CpuWish, promised: &BTreeMap<u32, u64>) -> Vec<u32> {
        let own: BTreeSet<u32> = self
            .nodes_of(cpus)
            .into_iter()
            .filter(|node| self.mem_bytes.contains_key(node))
            .collect();
        let room = |node: &u32| {
            self.mem_bytes[node].saturating_sub(promised.get(node).copied().unwrap_or(0))
        };
        let mut others: Vec<u32> = self
            .mem_bytes
            .keys()
            .filter(|node| !own.contains(node))
            .copied()
            .collect();
        others.sort_by_key(|node| {
            own.iter()
                .map(|one| self.distance(*one, *node))
                .min()
                .unwrap_or(0)
        });
        let mut mems: Vec<u32> = own.into_iter().collect();
        let mut bytes: u64 = mems.iter().map(room).sum();
        for node in others {
            if !mems.is_empty() && bytes >= wish.mem_bytes {
                break;
            }
            bytes += room(&node);
            mems.push(node);
        }
        mems.sort_unstable();
        mems
    }
}

/// `0-3,8` as numbers; what is no number is passed over.
pub fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (
            first.trim().parse::<u32>().ok()?,
            last.trim().parse::<u32>().ok()?,
        );
        // No kernel has more.
        (last < 1 << 20).then_some(first..=last)
    };
    let mut numbers: Vec<u32> = text.trim().split(',').filter_map(range).flatten().collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Numbers in the kernel's form: `0-3,8`.
pub fn list_text(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// `Node 0 MemTotal:  263745492 kB`.
fn mem_total_bytes(meminfo: &str) -> u64 {
    let line = meminfo
        .lines()
        .find_map(|line| line.split_once("MemTotal:"));
    line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// What sched_getaffinity(2) says.
pub fn own_cpus() -> io::Result<Vec<u32>> {
    let mut mask = [0u64; MASK_WORDS];
    // SAFETY: the kernel fills at most the given number of bytes of a buffer of that size.
    let filled = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    };
    if filled < 0 {
        return Err(io::Error::last_os_error());
    }
    let set = |cpu: &u32| mask[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
    Ok((0..MASK_WORDS as u32 * 64).filter(set).collect())
}

/// Words of an affinity mask: 8192 processors, as many as Linux can have.
const MASK_WORDS: usize = 128;

/// An affinity mask made ahead, so that a forked child can bind itself without allocating.
#[derive(Clone, Debug)]
pub struct Affinity(Box<[u64; MASK_WORDS]>);

impl Affinity {
    pub fn new(cpus: &[u32]) -> Self {
        let mut mask = Box::new([0u64; MASK_WORDS]);
        for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < MASK_WORDS * 64) {
            mask[*cpu as usize / 64] |= 1 << (cpu % 64);
        }
        Self(mask)
    }

    /// Binds the calling thread. Async-signal-safe. Returns the errno of a refusal: none of the processors is the
    /// cgroup's, or there are none.
    pub(crate) fn bind(&self) -> Result<(), i32> {
        // SAFETY: the mask is a buffer of the given size that lives through the call.
        let bound = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                0,
                size_of_val(&*self.0),
                self.0.as_ptr(),
            )
        };
        if bound < 0 {
            Err(crate::process::errno())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of four cores with two threads each: 0-3,8-11 and 4-7,12-15; GPUs on both.
    fn two_sockets() -> CpuTopology {
        let dir = std::env::temp_dir().join(format!(
            "gpupool-cpus-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("cpu/online", "0-15\n");
        write("node/online", "0-1\n");
        for (node, list) in [(0, "0-3,8-11"), (1, "4-7,12-15")] {
            write(&format!("node/node{node}/cpulist"), list);
            write(
                &format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:       1048576 kB\nNode {node} MemFree: 5 kB\n"),
            );
            write(
                &format!("node/node{node}/distance"),
                if node == 0 { "10 21\n" } else { "21 10\n" },
            );
        }
        for cpu in 0..16 {
            write(
                &format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
                &format!("{},{}\n", cpu % 8, cpu % 8 + 8),
            );
        }
        let read = CpuTopology::read(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        read
    }

    fn chosen(topology: &CpuTopology, cpus: u32, near: &[u32], taken: &[u32]) -> Option<String> {
        let wish = CpuWish {
            cpus,
            mem_bytes: 1 << 20,
            near: near.to_vec(),
        };
        let taken = taken.iter().copied().collect();
        let share = topology.choose(&wish, &taken, &BTreeMap::new())?;
        Some(format!(
            "{} mem {}",
            list_text(&share.cpus),
            list_text(&share.mems)
        ))
    }

    #[test]
    fn a_run_gets_whole_cores_near_its_gpus() {
        let machine = two_sockets();
        let choose =
            |cpus, near: &[u32], taken: &[u32]| chosen(&machine, cpus, near, taken).unwrap();
        assert_eq!(choose(4, &[1], &[]), "4-5,12-13 mem 1");
        assert_eq!(choose(4, &[0], &[0, 8]), "1-2,9-10 mem 0");
        // An odd one takes what another run left of a core before it breaks one.
        assert_eq!(choose(1, &[0], &[0]), "8 mem 0");
        assert_eq!(choose(3, &[0], &[0]), "1,8-9 mem 0");
        // GPUs on both sides: as many on each.
        assert_eq!(choose(4, &[0, 1], &[]), "0,4,8,12 mem 0-1");
        // What the near side cannot give comes from the other.
        assert_eq!(choose(10, &[1], &[]), "0,4-8,12-15 mem 0-1");
    }

    #[test]
    fn without_gpus_a_run_stays_on_one_side_and_leaves_the_larger_room() {
        let machine = two_sockets();
        assert_eq!(
            chosen(&machine, 4, &[], &[0, 1, 8, 9]).unwrap(),
            "2-3,10-11 mem 0"
        );
        assert_eq!(chosen(&machine, 8, &[], &[0]).unwrap(), "4-7,12-15 mem 1");
        assert_eq!(
            chosen(&machine, 12, &[], &[0]).unwrap(),
            "1-2,4-7,9-10,12-15 mem 0-1"
        );
    }

    #[test]
    fn no_processor_is_given_twice_and_too_few_are_said() {
        let machine = two_sockets();
        let mut taken = BTreeSet::new();
        for (cpus, near) in [
            (3, vec![0]),
            (5, vec![1]),
            (1, vec![]),
            (4, vec![0, 1]),
            (3, vec![1]),
        ] {
            let share = machine
                .choose(
                    &CpuWish {
                        cpus,
                        mem_bytes: 0,
                        near,
                    },
                    &taken,
                    &BTreeMap::new(),
                )
                .unwrap();
            assert_eq!(share.cpus.len(), cpus as usize);
            assert!(
                share.cpus.iter().all(|cpu| taken.insert(*cpu)),
                "{share:?} beside {taken:?}"
            );
        }
        assert_eq!(taken.len(), 16);
        assert_eq!(
            chosen(&machine, 1, &[], &taken.into_iter().collect::<Vec<_>>()),
            None
        );
    }

    #[test]
    fn memory_that_does_not_fit_beside_the_processors_comes_from_the_next_node() {
        let machine = two_sockets();
        let wish = |mem_bytes| CpuWish {
            cpus: 2,
            mem_bytes,
            near: vec![1],
        };
        let mems = |mem_bytes, promised: &[(u32, u64)]| {
            machine
                .choose(
                    &wish(mem_bytes),
                    &BTreeSet::new(),
                    &promised.iter().copied().collect(),
                )
                .unwrap()
                .mems
        };
        assert_eq!(mems(1 << 30, &[]), [1]);
        assert_eq!(mems((1 << 30) + 1, &[]), [0, 1]);
        assert_eq!(mems(1 << 29, &[(1, 3 << 28)]), [0, 1]);
        // A machine with memory nodes that runs may not use.
        let bounded = machine.clone().within(&[4, 5, 12, 13], &[0]);
        assert_eq!(
            bounded
                .choose(&wish(1), &BTreeSet::new(), &BTreeMap::new())
                .unwrap()
                .mems,
            [0]
        );
        assert_eq!(bounded.len(), 4);
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_has_them() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list(""), Vec::<u32>::new());
        assert_eq!(parse_list("0-4294967295,7"), [7]);
        assert_eq!(list_text(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(list_text(&[]), "");
    }

    #[test]
    fn this_machine_can_be_read_and_this_thread_can_be_bound() {
        let here = CpuTopology::read(Path::new(SYSTEM)).unwrap();
        let own = own_cpus().unwrap();
        assert!(
            !own.is_empty() && own.iter().all(|cpu| here.cpus.contains_key(cpu)),
            "{own:?} of {here:?}"
        );
        let last = *own.last().unwrap();
        std::thread::spawn(move || {
            Affinity::new(&[last]).bind().unwrap();
            assert_eq!(own_cpus().unwrap(), [last]);
            assert_eq!(Affinity::new(&[]).bind(), Err(libc::EINVAL));
        })
        .join()
        .unwrap();
    }
}
