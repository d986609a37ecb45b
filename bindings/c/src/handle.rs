//! Handles on the heap: how they are given out and taken back.
//!
//! The memory of a handle is never given back to the allocator, only used for a later handle of the same kind, and not
//! before [`RESTING`] others were given back. So a call with a handle that was given away reads memory that is ours, finds
//! the mark gone, and says so, instead of reading what was freed. It also means that a worker in lockstep allocates
//! nothing for a frame.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use sidecar_c_agent::border::{Border, Kind, Marked};
use sidecar_c_agent::fence::Checked;

/// How many places of a kind rest before one of them is used again.
const RESTING: usize = 64;

/// A kind of handle that lives on the heap.
pub(crate) trait OnHeap: Kind + Sized + 'static {
    /// Where its places rest.
    fn pool() -> &'static Pool<Self>;
}

/// Places of one kind of handle that nobody has.
#[derive(Debug)]
pub(crate) struct Pool<T: 'static>(Mutex<VecDeque<Place<T>>>);

#[derive(Debug)]
struct Place<T: 'static>(NonNull<MaybeUninit<Marked<T>>>);

// SAFETY: a resting place holds no handle, only memory; whoever takes it out has it alone.
unsafe impl<T> Send for Place<T> {}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// The one that has rested longest, or a new one.
    fn take(&self) -> Place<T> {
        let mut resting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = if resting.len() > RESTING { resting.pop_front() } else { None };
        rested.unwrap_or_else(|| Place(NonNull::from(Box::leak(Box::new_uninit()))))
    }

    fn give_back(&self, place: Place<T>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(place);
    }
}

/// Gives a handle to the caller.
pub(crate) fn give<T: OnHeap>(inner: T) -> *mut Marked<T> {
    let Place(place) = T::pool().take();
    let handle = place.cast::<Marked<T>>().as_ptr();
    // SAFETY: the place is this kind's, and nobody else's since it was taken out of the pool.
    unsafe { handle.write(Marked::new(inner)) };
    handle
}

/// Takes a handle back from the caller, who gives it away.
pub(crate) fn take<T: OnHeap>(border: &Border, handle: *mut Marked<T>) -> Checked<T> {
    border.unmark(handle)?;
    // SAFETY: it was a handle of this kind, so it was made by `give`; that it is given away, the promise says, and
    // without its mark nobody takes it for one again. What is in it is moved out here, and never read again.
    let inner = unsafe { handle.read() }.into_inner();
    if let Some(place) = NonNull::new(handle) {
        T::pool().give_back(Place(place.cast()));
    }
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sidecar_c_agent::status::ERR_STATE;

    use super::*;

    #[derive(Debug)]
    struct Counted(usize);

    impl Kind for Counted {
        const MARK: u64 = u64::from_be_bytes(*b"sdctests");
    }

    impl OnHeap for Counted {
        fn pool() -> &'static Pool<Self> {
            static POOL: Pool<Counted> = Pool::new();
            &POOL
        }
    }

    #[test]
    fn a_handle_that_was_given_away_is_told_while_others_come_and_go_and_memory_is_bounded() {
        // SAFETY: all handles are from `give`.
        let border = unsafe { Border::new() };
        let mut places = HashSet::new();
        let gone = give(Counted(0));
        assert_eq!(take(&border, gone).map(|counted| counted.0), Ok(0));
        for count in 1..=RESTING {
            assert_eq!(take(&border, gone).map(|_| ()), Err(ERR_STATE));
            let handle = give(Counted(count));
            assert_ne!(handle, gone, "used again after {count}");
            assert_eq!(take(&border, handle).map(|counted| counted.0), Ok(count));
            places.insert(handle);
        }
        for count in 0..10 * RESTING {
            let handle = give(Counted(count));
            assert_eq!(take(&border, handle).map(|counted| counted.0), Ok(count));
            places.insert(handle);
        }
        assert_eq!(places.len(), RESTING + 1, "the same places go round");
    }
}
