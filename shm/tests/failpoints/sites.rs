//! Which places there are, by the source itself: a store that somebody adds is a place that has to be tried.

use std::collections::BTreeSet;
use std::path::Path;

/// Not places: tests, models, what makes the places, and what only this process sees.
const SKIPPED: [&str; 11] = [
    "tests",
    "testing.rs",
    "simulation.rs",
    "failpoints.rs",
    "crash.rs",
    "sync.rs",
    "fuzzing.rs",
    // What a signal handler looks up belongs to its process alone.
    "guard.rs",
    "watched.rs",
    "modelled.rs",
    // The start-up measurement of a wake-up works on words of its own process.
    "spin",
];

/// All places of the crate, as `file:line`.
pub(crate) fn all() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places = BTreeSet::new();
    collect(&root.join("src"), "shm/src", &mut places);
    places
}

fn collect(directory: &Path, shown: &str, places: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if SKIPPED.contains(&name.as_str()) || SKIPPED.contains(&name.trim_end_matches(".rs")) {
            continue;
        }
        let shown = format!("{shown}/{name}");
        if path.is_dir() {
            collect(&path, &shown, places);
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        // End of an item that is left out of a product.
        let mut skipped_to = None;
        for (number, line) in source.lines().enumerate() {
            let (indent, line) = line.split_at(line.len() - line.trim_start().len());
            if skipped_to == Some(indent) && (line == "}" || line.ends_with(';')) {
                skipped_to = None;
                continue;
            }
            if line.starts_with("#[cfg(feature = ") {
                skipped_to = Some(indent);
            }
            if skipped_to.is_some() {
                continue;
            }
            if line.starts_with("mod tests {") {
                break;
            }
            if line.starts_with("//") {
                continue;
            }
            for other in [".swap(", ".fetch_", ".compare_exchange"] {
                // Values that are no words are swapped as well.
                let atomic = line.contains(other) && line.contains("Ordering::");
                assert!(!atomic, "{shown}:{}: only plain stores are watched", number + 1);
            }
            // Cells are stored through a trait; the place is where that is done.
            let store = line.contains(".store(") && !line.contains("self.cells.store(");
            let step = line.contains("step();") && !line.contains("fn step");
            if store || step || line.starts_with("point(Point::") {
                places.insert(format!("{shown}:{}", number + 1));
            }
        }
    }
}
