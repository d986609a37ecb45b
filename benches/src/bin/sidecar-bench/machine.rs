//! What a reader has to know about the machine and the versions to make sense of a figure.

use std::collections::BTreeMap;
use std::fs::read_to_string;

/// Facts, in the order of a table; with the versions of what is measured against.
pub(crate) fn describe() -> BTreeMap<&'static str, String> {
    let mut facts = of_the_machine();
    facts.extend(versions());
    facts
}

/// Those of the machine alone.
pub(crate) fn of_the_machine() -> BTreeMap<&'static str, String> {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned());
    let hypervisor = if cpuinfo.contains("hypervisor") { "a virtual machine" } else { "bare metal" };
    let governor = first("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let idle = first("/sys/devices/system/cpu/cpuidle/current_governor_ro");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    BTreeMap::from([
        ("cores", cores.to_string()),
        ("cpu", format!("{model}, {hypervisor}")),
        ("governors", format!("frequency {governor}, idle {idle}")),
        ("kernel", first("/proc/sys/kernel/osrelease")),
    ])
}

/// Load averages now: a busy machine's figures are worth nothing.
pub(crate) fn load() -> String {
    read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Clock ticks that the hypervisor gave to others since the start of the machine.
pub(crate) fn stolen() -> u64 {
    let stat = read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    line.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Of what is measured against, from the files that pin them.
fn versions() -> BTreeMap<&'static str, String> {
    const LOCK: &str = include_str!("../../../../Cargo.lock");
    const REQUIREMENTS: &str = include_str!("../../../peers/requirements.txt");
    let mut versions = BTreeMap::new();
    for name in ["fastwebsockets", "iceoryx2", "io-uring", "tokio-tungstenite", "tokio-uring"] {
        let entry = format!("name = \"{name}\"\nversion = \"");
        // The newest, where other crates want an old one too.
        let found =
            LOCK.match_indices(&entry).filter_map(|(at, _)| LOCK[at + entry.len()..].split('"').next());
        versions.insert(name, found.max().unwrap_or("?").to_owned());
    }
    for name in ["picows", "websockets"] {
        let found = REQUIREMENTS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("=="));
        versions.insert(name, found.unwrap_or("?").to_owned());
    }
    let boost = read_to_string("/usr/include/boost/version.hpp").unwrap_or_default();
    let boost = boost.lines().find_map(|line| line.strip_prefix("#define BOOST_LIB_VERSION "));
    versions.insert(
        "boost",
        boost.map_or_else(|| "not installed".to_owned(), |version| version.trim_matches('"').to_owned()),
    );
    versions
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first(path: &str) -> String {
    let text = read_to_string(path).unwrap_or_default();
    text.lines().next().map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pinned_version_is_found() {
        let versions = versions();
        assert!(versions.values().all(|version| version != "?"), "{versions:?}");
        assert!(describe()["kernel"].starts_with(|first: char| first.is_ascii_digit()));
    }
}
