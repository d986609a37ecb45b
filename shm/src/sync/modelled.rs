//! Words of a model: loom's, or the language's for what one thread has to itself. Of those loom needs to know nothing:
//! nobody else can see them change, so that no order of steps and no old value makes a difference.

use core::sync::atomic::{self, Ordering};

#[derive(Debug)]
enum Word<Shared, Own> {
    Shared(Shared),
    Own(Own),
}

macro_rules! words {
    ($($name:ident: $value:ty;)*) => {$(
        /// See the module's text.
        #[derive(Debug)]
        pub struct $name(Word<loom::sync::atomic::$name, atomic::$name>);

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        impl $name {
            /// A word that threads share.
            #[track_caller]
            pub fn new(value: $value) -> Self {
                Self(Word::Shared(loom::sync::atomic::$name::new(value)))
            }

            /// A word that one thread has to itself: whoever hands it out sees to that.
            pub(crate) const fn own(value: $value) -> Self {
                Self(Word::Own(atomic::$name::new(value)))
            }

            /// Loads the value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                match &self.0 {
                    Word::Shared(word) => word.load(order),
                    Word::Own(word) => word.load(Ordering::Relaxed),
                }
            }

            /// Stores a value.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                match &self.0 {
                    Word::Shared(word) => word.store(value, order),
                    Word::Own(word) => word.store(value, Ordering::Relaxed),
                }
            }
        }
    )*};
}

words! {
    AtomicU32: u32;
    AtomicU64: u64;
}
