//! Turns: which tests of one process run at the same time.
//!
//! A test that starts servers or services holds a turn of a [`Weight`] until its end. Each processor has several
//! shares, because such a test also waits. Those that need the whole machine get their turns first, while the
//! tests that compute use what they leave; heavy and long ones follow, so that no long test is alone at the end.
//!
//! [`super::NatsServer`] and the systems of `wattle-tests` take a light turn by themselves. A test with another
//! weight takes its turn in its first line. A thread has one turn: every further call returns the same.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// What a test needs of the machine, in the order in which waiting tests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The whole machine: the test needs a known relation between two speeds.
    Alone,
    /// Four shares: a browser, or a real scheduler with its own daemons and times.
    Heavy,
    /// One share, for about a minute.
    Long,
    /// One share.
    Light,
}

/// Shares of one processor. The clocks of more systems at once are held longer; which number is fastest is not
/// measured.
const SHARES: usize = 5;

/// Time in which the other tests of the process arrive, so that the first turn is not that of the test which
/// arrived first.
const ARRIVAL: Duration = Duration::from_millis(300);

impl Weight {
    fn shares(self, capacity: usize) -> usize {
        match self {
            Self::Heavy => 4,
            Self::Long | Self::Light => 1,
            Self::Alone => capacity,
        }
    }
}

/// The right to run, until its last copy is dropped.
#[derive(Clone, Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held(Weight);

impl Drop for Held {
    fn drop(&mut self) {
        queue().leave(self.0);
        CHANGED.notify_all();
    }
}

/// Tests that run and tests that wait.
#[derive(Debug)]
struct Queue {
    running: Vec<Weight>,
    /// Each with the number of its arrival.
    waiting: Vec<(Weight, u64)>,
    arrived: u64,
}

impl Queue {
    const fn new() -> Self {
        Self { running: Vec::new(), waiting: Vec::new(), arrived: 0 }
    }

    fn arrive(&mut self, weight: Weight) -> (Weight, u64) {
        self.arrived += 1;
        let place = (weight, self.arrived);
        let at = self.waiting.partition_point(|other| *other < place);
        self.waiting.insert(at, place);
        place
    }

    /// The waiting test that starts next. One without enough free shares keeps the later ones waiting too, so
    /// that many light tests cannot delay a heavy one for ever.
    fn next(&self, capacity: usize) -> Option<(Weight, u64)> {
        let used: usize = self.running.iter().map(|weight| weight.shares(capacity)).sum();
        let first = *self.waiting.first()?;
        // More than there are is all of them.
        (used == 0 || used + first.0.shares(capacity) <= capacity).then_some(first)
    }

    fn start(&mut self, place: (Weight, u64)) {
        self.waiting.retain(|other| *other != place);
        self.running.push(place.0);
    }

    fn leave(&mut self, weight: Weight) {
        let at = self.running.iter().position(|other| *other == weight);
        self.running.swap_remove(at.expect("it runs"));
    }
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue::new());
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static OWN: RefCell<Weak<Held>> = const { RefCell::new(Weak::new()) };
}

/// A failed test poisons nothing: every change of the queue is complete.
fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the turn of this thread's test. A turn that the thread already holds is returned as it is.
pub fn turn(weight: Weight) -> Turn {
    if let Some(held) = OWN.with_borrow(Weak::upgrade) {
        return Turn { _held: held };
    }
    let capacity = SHARES * std::thread::available_parallelism().map_or(1, usize::from);
    let mut queue = queue();
    let place = queue.arrive(weight);
    queue = match CHANGED.wait_timeout_while(queue, ARRIVAL, |_| true) {
        Ok((queue, _)) => queue,
        Err(poisoned) => poisoned.into_inner().0,
    };
    while queue.next(capacity) != Some(place) {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
    queue.start(place);
    drop(queue);
    CHANGED.notify_all();
    let held = Arc::new(Held(weight));
    OWN.set(Arc::downgrade(&held));
    Turn { _held: held }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weights that run after these have arrived, on two processors.
    fn running(arriving: &[Weight]) -> Vec<Weight> {
        let mut queue = Queue::new();
        for weight in arriving {
            queue.arrive(*weight);
        }
        while let Some(place) = queue.next(8) {
            queue.start(place);
        }
        queue.running
    }

    #[test]
    fn heavy_ones_start_first_and_others_fill_the_rest() {
        use Weight::{Alone, Heavy, Light, Long};
        assert_eq!(running(&[Light, Long, Heavy]), [Heavy, Long, Light]);
        assert_eq!(running(&[Light, Heavy, Heavy, Heavy]), [Heavy; 2]);
        assert_eq!(running(&[Light, Long, Alone]), [Alone]);
        assert_eq!(running(&[Alone, Alone]), [Alone]);
        assert_eq!(running(&[Light; 9]), [Light; 8]);
    }

    #[test]
    fn later_ones_do_not_overtake_one_that_waits_for_shares() {
        let mut queue = Queue::new();
        for _ in 0..5 {
            let place = queue.arrive(Weight::Light);
            queue.start(place);
        }
        queue.arrive(Weight::Light);
        let heavy = queue.arrive(Weight::Heavy);
        assert_eq!(queue.next(8), None);
        queue.leave(Weight::Light);
        assert_eq!(queue.next(8), Some(heavy));
    }

    #[test]
    fn more_shares_than_there_are_is_the_whole_machine() {
        let mut queue = Queue::new();
        let heavy = queue.arrive(Weight::Heavy);
        assert_eq!(queue.next(1), Some(heavy));
    }

    #[test]
    fn second_turn_of_a_thread_is_the_first_one() {
        let first = turn(Weight::Light);
        let second = turn(Weight::Alone);
        drop(first);
        drop(second);
        let third = turn(Weight::Long);
        assert!(!queue().waiting.iter().any(|(weight, _)| *weight == Weight::Alone));
        drop(third);
    }
}
