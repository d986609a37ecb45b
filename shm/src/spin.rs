//! How long to spin before sleeping.
//!
//! A sleep costs a wake-up: 2 to 5 microseconds on bare metal, 25 to 60 between the cores of a virtual machine. It is
//! measured once in each process, in at most 20 ms. Who spins for one wake-up's time never loses more than twice what
//! the best choice would have cost; the budget starts there. From then on it follows a moving average of recent waits:
//! waits that end soon are spun through, waits that are long cost one wake-up's time of spinning and no more.
//! Where there are fewer cores than spinners, a spinner would hold up the one it waits for: it does not spin.
//!
//! It refuses to know what is waited for, and never sleeps itself.

mod measure;

use core::time::Duration;

use crate::clock;
use crate::sync::spin_hint;

pub use measure::{usable_cores, wake_cost};

/// Looks between two readings of the clock, which costs as much as some of them.
const LOOKS: u32 = if cfg!(sidecar_loom) { 1 } else { 16 };
/// Waits of up to so many wake-ups are spun through; beyond that a wake-up is a small part of the wait.
const WORTH_WAKES: u32 = 32;
/// ... but never fewer than this: at 100 us of thinking, a wake-up of 3 us still is too much.
const LEAST_LIMIT: Duration = Duration::from_micros(400);
/// ... and never more: a core has better things to do.
const MOST_LIMIT: Duration = Duration::from_millis(1);

/// What the user asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// As measured, see the module's text.
    #[default]
    Auto,
    /// Sleep at once.
    Off,
    /// Always this long, whatever the cores.
    Fixed(Duration),
}

/// The budget of one waiter.
#[derive(Clone, Debug)]
pub struct Spin {
    /// `None`: the budget does not change.
    adapt: Option<Adapt>,
    /// How long the next wait is spun.
    budget: Duration,
    /// How long the last wait was spun in vain: part of the wait whose sleep is told next.
    spun: Duration,
}

#[derive(Clone, Debug)]
struct Adapt {
    wake: Duration,
    limit: Duration,
    average: Duration,
}

impl Spin {
    /// [`Mode::Auto`] for one of two spinners: the sidecar and its worker.
    #[expect(
        clippy::new_without_default,
        reason = "it may measure for 20 ms, which no default should do unseen"
    )]
    pub fn new() -> Self {
        Self::measure(Mode::Auto, 2)
    }

    /// A budget for one of `spinners` threads that may spin at the same time. The first call in a process with
    /// [`Mode::Auto`] and enough cores takes up to 20 ms.
    pub fn measure(mode: Mode, spinners: usize) -> Self {
        #[cfg(feature = "simulation")]
        if crate::simulation::time().is_some() {
            return Self::fixed(Duration::ZERO);
        }
        match mode {
            Mode::Off => Self::fixed(Duration::ZERO),
            Mode::Fixed(budget) => Self::fixed(budget),
            Mode::Auto if usable_cores() < spinners => Self::fixed(Duration::ZERO),
            Mode::Auto => Self::adaptive(wake_cost()),
        }
    }

    const fn fixed(budget: Duration) -> Self {
        Self { adapt: None, budget, spun: Duration::ZERO }
    }

    fn adaptive(wake: Duration) -> Self {
        let limit = (wake * WORTH_WAKES).clamp(LEAST_LIMIT, MOST_LIMIT);
        Self { adapt: Some(Adapt { wake, limit, average: wake / 2 }), budget: wake, spun: Duration::ZERO }
    }

    /// Spins until `ready` or the budget is over; without a budget it does not even look. `false`: sleep now, after
    /// announcing it and looking once more, and tell [`Spin::slept`] how long.
    pub fn wait(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        self.spun = Duration::ZERO;
        if self.budget.is_zero() {
            return false;
        }
        // There was nothing to wait for: that says nothing about waits.
        if ready() {
            return true;
        }
        let started = clock::now();
        let mut spun = Duration::ZERO;
        let came = poll(ready, || {
            spun = clock::now().since(started);
            spun >= self.budget
        });
        if came {
            self.learn(spun);
        } else {
            self.spun = spun;
        }
        came
    }

    /// The last [`Spin::wait`] was in vain, and this is how long the sleep after it took.
    pub fn slept(&mut self, duration: Duration) {
        let whole = self.spun.saturating_add(duration);
        self.spun = Duration::ZERO;
        self.learn(whole);
    }

    fn learn(&mut self, waited: Duration) {
        let Some(Adapt { wake, limit, average }) = &mut self.adapt else { return };
        // One long pause counts as a wait just too long to spin for, so that a few short waits make up for it.
        let waited = waited.min(*limit * 2);
        *average = (*average * 3 + waited) / 4;
        self.budget = if *average <= *limit { (*average * 2).clamp(*wake, *limit) } else { *wake };
    }
}

/// The loop itself: looks again and again until `ready`, or until `over` says that it is enough.
pub fn poll(mut ready: impl FnMut() -> bool, mut over: impl FnMut() -> bool) -> bool {
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            spin_hint();
        }
        if over() {
            return false;
        }
    }
}

#[cfg(all(test, not(sidecar_loom)))]
mod tests {
    use super::*;

    const WAKE: Duration = Duration::from_micros(30);
    const LIMIT: Duration = Duration::from_micros(960);

    fn after(waits: &[Duration]) -> Spin {
        let mut spin = Spin::adaptive(WAKE);
        waits.iter().for_each(|wait| spin.slept(*wait));
        spin
    }

    #[test]
    fn it_starts_at_one_wake_up() {
        assert_eq!(after(&[]).budget, WAKE);
    }

    #[test]
    fn it_covers_waits_that_are_worth_it() {
        let spin = after(&[Duration::from_micros(100); 10]);
        assert!(spin.budget >= Duration::from_micros(150), "{:?}", spin.budget);
        assert!(spin.budget <= Duration::from_micros(200), "{:?}", spin.budget);
    }

    #[test]
    fn long_waits_cost_one_wake_up_of_spinning_and_short_ones_are_found_again() {
        let hour = Duration::from_secs(3600);
        let mut spin = after(&[hour; 20]);
        assert_eq!(spin.budget, WAKE);
        for _ in 0..4 {
            spin.slept(Duration::from_micros(50));
        }
        assert!(spin.budget > WAKE, "{:?}", spin.budget);
        assert!(spin.budget <= LIMIT);
    }

    #[test]
    fn the_budget_stays_in_its_range_whatever_is_waited() {
        let mut spin = after(&[]);
        for waited in [0, 1, 1_000_000_000, 17, u64::MAX, 3, 400_000].map(Duration::from_nanos) {
            spin.slept(waited);
            assert!((WAKE..=LIMIT).contains(&spin.budget), "{:?} after {waited:?}", spin.budget);
        }
        spin.slept(Duration::MAX);
        assert!((WAKE..=LIMIT).contains(&spin.budget));
    }

    #[test]
    fn off_never_looks_and_fixed_keeps_its_time() {
        let mut off = Spin::measure(Mode::Off, 1);
        assert!(!off.wait(|| panic!("it looks")));
        let fixed = Duration::from_micros(300);
        let mut spin = Spin::measure(Mode::Fixed(fixed), usize::MAX);
        let started = clock::now();
        assert!(!spin.wait(|| false));
        assert!(clock::now().since(started) >= fixed);
        spin.slept(Duration::from_secs(1));
        assert_eq!(spin.budget, fixed);
    }

    #[test]
    fn more_spinners_than_cores_do_not_spin() {
        assert_eq!(Spin::measure(Mode::Auto, usize::MAX).budget, Duration::ZERO);
    }

    #[test]
    fn what_comes_while_spinning_ends_it() {
        let mut spin = Spin::measure(Mode::Fixed(Duration::from_secs(60)), 1);
        let mut looks = 0;
        assert!(spin.wait(|| {
            looks += 1;
            looks == 100
        }));
    }

    #[test]
    fn a_spun_wait_and_its_sleep_are_one_wait() {
        let mut spin = Spin::adaptive(WAKE);
        assert!(!spin.wait(|| false));
        assert!(spin.spun >= WAKE);
        spin.slept(Duration::ZERO);
        assert_eq!(spin.spun, Duration::ZERO);
        assert!(spin.budget > WAKE, "{:?}", spin.budget);
    }
}
