//! A model's words: loom's own atomics, in the place of those of the mapping, which it can't look at.
//!
//! All mappings of one file have the same words, as they have the same memory; a word begins with what lies in the file.
//! Payloads stay in the mapping: loom does not watch them. Whether an access to a payload is ordered is for models with
//! cells of loom's own.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::sync::{AtomicU32, AtomicU64};

thread_local! {
    /// The files that are mapped, by inode. All threads of a model are one thread of the system.
    static FILES: RefCell<BTreeMap<u64, Weak<Words>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The words of one file that were looked at so far, by offset.
#[derive(Debug, Default)]
pub(super) struct Words {
    narrow: Mutex<BTreeMap<usize, Box<AtomicU32>>>,
    wide: Mutex<BTreeMap<usize, Box<AtomicU64>>>,
}

impl Words {
    /// The words of a file, for as long as somebody maps it.
    pub(super) fn of(file: &File) -> io::Result<Arc<Self>> {
        let inode = file.metadata()?.ino();
        Ok(FILES.with_borrow_mut(|files| {
            files.retain(|_, words| words.strong_count() > 0);
            if let Some(words) = files.get(&inode).and_then(Weak::upgrade) {
                return words;
            }
            let words = Arc::new(Self::default());
            files.insert(inode, Arc::downgrade(&words));
            words
        }))
    }

    pub(super) fn narrow(&self, offset: usize, first: u32) -> &AtomicU32 {
        let mut words = self.narrow.lock().unwrap_or_else(PoisonError::into_inner);
        let word: *const AtomicU32 =
            &raw const **words.entry(offset).or_insert_with(|| AtomicU32::new(first).into());
        // SAFETY: it lies in a box that is neither moved out of the map nor dropped before `self`.
        unsafe { &*word }
    }

    pub(super) fn wide(&self, offset: usize, first: u64) -> &AtomicU64 {
        let mut words = self.wide.lock().unwrap_or_else(PoisonError::into_inner);
        let word: *const AtomicU64 =
            &raw const **words.entry(offset).or_insert_with(|| AtomicU64::new(first).into());
        // SAFETY: as in `narrow`.
        unsafe { &*word }
    }
}
