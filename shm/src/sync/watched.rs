//! Words of which each store is a place to die at ([`crate::failpoints`]). They are the language's atomics otherwise.
//!
//! Only plain stores are watched. Nothing else writes a word that processes share: there is one writer each, and the
//! test that uses this looks for anything else in the source.

use core::ops::Deref;
use core::panic::Location;
use core::sync::atomic::{self, Ordering};

macro_rules! watched {
    ($($name:ident: $value:ty;)*) => {$(
        /// See the module's text.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        impl $name {
            /// A word of its own.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            /// The word at `at`.
            ///
            /// # Safety
            /// As for the method of the same name of the language's atomics.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller's, and the layout is that of the atomic, which has the value's.
                unsafe { &*at.cast::<Self>() }
            }

            /// Stores a value, unless this is where the process ends.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                crate::failpoints::reached(Location::caller());
                self.0.store(value, order);
            }
        }

        impl Deref for $name {
            type Target = atomic::$name;

            fn deref(&self) -> &atomic::$name {
                &self.0
            }
        }
    )*};
}

watched! {
    AtomicU32: u32;
    AtomicU64: u64;
}
