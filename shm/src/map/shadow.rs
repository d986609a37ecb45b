//! A model's words: loom's own atomics, in the place of those of the mapping, which it can't look at.
//!
//! All mappings of one file have the same words, as they have the same memory; a word begins with what lies in the file.
//! Payloads stay in the mapping: loom does not watch them. Whether an access to a payload is ordered is for models with
//! cells of loom's own.
//!
//! What the sidecar alone reads and writes is most of the words: the journal, which its successor reads when it has
//! ended, statistics and errors, at which others look from outside. Nobody else can see when they change, so that they
//! are no steps of a model. That this is so is what loom watches: to it they are one plain cell, and two accesses that
//! nothing orders are an error.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use loom::cell::UnsafeCell;

use crate::layout::{DOWN, JOURNAL_BYTES, PAGE, STATS};
use crate::sync::{AtomicU32, AtomicU64};

thread_local! {
    /// The files that are mapped, by inode. All threads of a model are one thread of the system.
    static FILES: RefCell<BTreeMap<u64, Weak<Words>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The words of one file that were looked at so far, by offset.
#[derive(Debug)]
pub(super) struct Words {
    narrow: Mutex<BTreeMap<usize, Box<AtomicU32>>>,
    wide: Mutex<BTreeMap<usize, Box<AtomicU64>>>,
    /// The sidecar's own, by page: there are many of them, and they are blank when they are first looked at.
    own: [OnceLock<Box<[AtomicU64]>>; DOWN / PAGE],
    watched: UnsafeCell<()>,
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
            let words = Arc::new(Self {
                narrow: Mutex::default(),
                wide: Mutex::default(),
                own: [const { OnceLock::new() }; DOWN / PAGE],
                watched: UnsafeCell::new(()),
            });
            files.insert(inode, Arc::downgrade(&words));
            words
        }))
    }

    pub(super) fn narrow(&self, offset: usize, first: u32) -> &AtomicU32 {
        let new = if self.is_own(offset) { AtomicU32::own } else { AtomicU32::new };
        let word: *const AtomicU32 =
            &raw const **lock(&self.narrow).entry(offset).or_insert_with(|| new(first).into());
        // SAFETY: it lies in a box that is neither moved out of the map nor dropped before `self`.
        unsafe { &*word }
    }

    pub(super) fn wide(&self, offset: usize, first: u64) -> &AtomicU64 {
        if self.is_own(offset) {
            let page =
                self.own[offset / PAGE].get_or_init(|| (0..PAGE / 8).map(|_| AtomicU64::own(0)).collect());
            return &page[offset % PAGE / 8];
        }
        let word: *const AtomicU64 =
            &raw const **lock(&self.wide).entry(offset).or_insert_with(|| AtomicU64::new(first).into());
        // SAFETY: as in `narrow`.
        unsafe { &*word }
    }

    /// Whether the word is one of the sidecar's own.
    ///
    /// # Panics
    /// In loom, if it is, and is touched while another thread may be touching one of them.
    fn is_own(&self, offset: usize) -> bool {
        let own = offset < JOURNAL_BYTES || (STATS..DOWN).contains(&offset);
        if own {
            self.watched.with_mut(|_| ());
        }
        own
    }
}

fn lock<T>(words: &Mutex<T>) -> MutexGuard<'_, T> {
    words.lock().unwrap_or_else(PoisonError::into_inner)
}
