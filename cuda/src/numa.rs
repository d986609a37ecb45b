//! What the kernel says about the machine: NUMA nodes, their cores, where a GPU hangs; and memory near one.
//!
//! On a machine with one node, or one that does not tell, nothing here changes anything.

use core::ffi::{c_int, c_ulong};
use std::io;
use std::path::{Path, PathBuf};

/// The files under `/sys`, or a test's.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// This machine.
    pub fn here() -> Self {
        #[cfg(feature = "simulated-driver")]
        if let Some(root) = crate::simulated::root() {
            return Self { root };
        }
        Self { root: PathBuf::from("/") }
    }

    /// Another directory in place of `/`.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// Version of the loaded kernel module.
    pub(crate) fn nvidia_version(&self) -> Option<String> {
        self.read("sys/module/nvidia/version")
    }

    /// The node of a device on the bus. The kernel writes -1 where the firmware does not say.
    pub(crate) fn gpu_node(&self, bus: &str) -> Option<u32> {
        self.read(&format!("sys/bus/pci/devices/{bus}/numa_node"))?.parse().ok()
    }

    /// Bytes that this process's control group may have, second or first version of control groups; `None`: no limit,
    /// or not to be seen.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        // Where there is no limit: `max` in the second version, the largest number of pages in the first.
        const NONE: u64 = 1 << 62;
        let files = ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"];
        let text = files.iter().find_map(|file| self.read(file))?;
        text.parse().ok().filter(|bytes| *bytes < NONE)
    }

    /// The nodes that have memory and cores; empty where the kernel does not tell.
    pub fn nodes(&self) -> Vec<u32> {
        self.read("sys/devices/system/node/online").map(|text| list(&text)).unwrap_or_default()
    }

    /// The cores of a node.
    pub fn cores(&self, node: u32) -> Vec<u32> {
        self.read(&format!("sys/devices/system/node/node{node}/cpulist"))
            .map(|text| list(&text))
            .unwrap_or_default()
    }
}

/// `0-3,8,10-11`, as the kernel writes sets. What cannot be read is left out.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Memory that this thread allocates comes from a node while this lives, if the node has any left. Then the thread has
/// the policy of before again, such as what `numactl` gave it.
#[derive(Debug)]
pub struct Near {
    before: Policy,
}

/// A thread's memory policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    /// With its flags.
    mode: c_int,
    nodes: Mask,
}

type Mask = [c_ulong; MASK_BITS as usize / c_ulong::BITS as usize];

/// linux/mempolicy.h.
const MPOL_PREFERRED: c_int = 1;
/// As many nodes as a kernel can have (MAX_NUMNODES, 1 << NODES_SHIFT of at most 10): it gives no policy into fewer.
const MASK_BITS: u32 = 1024;

impl Near {
    /// From `node`.
    ///
    /// # Errors
    /// The kernel refuses, or knows no NUMA.
    pub fn node(node: u32) -> io::Result<Self> {
        if node >= MASK_BITS {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("node {node} of more than {MASK_BITS}"),
            ));
        }
        let before = Policy::current()?;
        let mut nodes = Mask::default();
        nodes[(node / c_ulong::BITS) as usize] = 1 << (node % c_ulong::BITS);
        Policy { mode: MPOL_PREFERRED, nodes }.set()?;
        Ok(Self { before })
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        // It was set once, so that it is refused only if its nodes are gone by now.
        let _ = self.before.set();
    }
}

/// One more than there are bits: the kernel takes one off (mm/mempolicy.c).
const MASK_LENGTH: c_ulong = MASK_BITS as c_ulong + 1;

impl Policy {
    /// This thread's.
    fn current() -> io::Result<Self> {
        let (mut mode, mut nodes) = (0, Mask::default());
        let nowhere = core::ptr::null::<c_ulong>();
        // SAFETY: the pointers are valid for a number and for as many bits as are told; no address is asked about.
        let result = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, &raw mut nodes, MASK_LENGTH, nowhere, 0)
        };
        if result == 0 { Ok(Self { mode, nodes }) } else { Err(io::Error::last_os_error()) }
    }

    fn set(&self) -> io::Result<()> {
        let nodes = &raw const self.nodes;
        // SAFETY: the mask is valid for the bits told, through the call; the kernel keeps no pointer.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, MASK_LENGTH) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0"), [0]);
        assert_eq!(list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(list("").is_empty());
        assert_eq!(list("x,2"), [2]);
    }

    #[test]
    fn a_gpu_without_a_node_has_none() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:41:00.0");
        std::fs::create_dir_all(&device).unwrap();
        let system = System::at(root.path());
        for (text, node) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            std::fs::write(device.join("numa_node"), text).unwrap();
            assert_eq!(system.gpu_node("0000:41:00.0"), node);
        }
        assert_eq!(system.gpu_node("0000:81:00.0"), None);
        assert!(system.nodes().is_empty());
    }

    #[test]
    fn memory_is_taken_from_a_node_that_is_there_and_then_as_before() {
        /// linux/mempolicy.h: none, tied to nodes, spread over nodes.
        const POLICIES: [c_int; 3] = [0, 2, 3];
        assert!(Near::node(MASK_BITS).is_err());
        let Some(node) = System::here().nodes().first().copied() else {
            return println!("skipped: this kernel tells no nodes");
        };
        let mut nodes = Mask::default();
        nodes[(node / c_ulong::BITS) as usize] = 1 << (node % c_ulong::BITS);
        for mode in POLICIES {
            let before = Policy { mode, nodes: if mode == 0 { Mask::default() } else { nodes } };
            if let Err(error) = before.set() {
                return println!("skipped: memory policies are not to be had here: {error}");
            }
            let near = Near::node(node).unwrap();
            assert_eq!(Policy::current().unwrap(), Policy { mode: MPOL_PREFERRED, nodes });
            drop(near);
            assert_eq!(Policy::current().unwrap(), before);
        }
    }
}
