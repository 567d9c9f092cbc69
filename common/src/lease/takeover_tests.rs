//! Several processes that compete for one lease, on virtual time: how long a takeover takes, and that no two
//! processes work at once.

use std::time::Duration;

use super::{Holding, Refusal, Standby, Step, StoredLease};
use crate::messages::LeaseHolder;
use crate::time::Timestamp;

const LENGTH: Duration = Duration::from_secs(9);
/// Time between the sending of a renewal and its storage.
const WAY: Duration = Duration::from_millis(40);

/// What a process does.
#[derive(Clone, Debug)]
enum Role {
    Standby(Standby),
    Holding(Holding),
    /// It has been killed.
    Ended,
}

#[derive(Clone, Debug)]
struct Process {
    holder: LeaseHolder,
    role: Role,
    /// Its next read or renewal.
    due: Duration,
}

/// The store and all processes.
struct Site {
    now: Duration,
    stored: StoredLease,
    processes: Vec<Process>,
    /// Processes that are known to have ended.
    known_ended: Vec<LeaseHolder>,
}

impl Site {
    /// Processes that are started at these instants.
    fn new(starts: &[Duration]) -> Self {
        let process = |(number, due): (usize, &Duration)| {
            let pid = u32::try_from(number).unwrap();
            let instance = format!("p{number}");
            let holder = LeaseHolder { instance, boot: None, pid_namespace: None, pid };
            let role = Role::Standby(Standby::new(holder.clone(), LENGTH));
            Process { holder, role, due: *due }
        };
        let stored = StoredLease { revision: 0, lease: None };
        let processes = starts.iter().enumerate().map(process).collect();
        Self { now: Duration::ZERO, stored, processes, known_ended: Vec::new() }
    }

    /// The processes whose lease is valid by their own clocks.
    fn active(&self) -> Vec<usize> {
        let is_active = |role: &Role| match role {
            Role::Holding(holding) => self.now < holding.valid_until(),
            Role::Standby(_) | Role::Ended => false,
        };
        let numbered = self.processes.iter().enumerate();
        numbered.filter(|(_, process)| is_active(&process.role)).map(|(number, _)| number).collect()
    }

    /// Advances to the next read or renewal, and carries it out.
    fn step(&mut self) {
        let alive =
            self.processes.iter_mut().filter(|process| !matches!(process.role, Role::Ended));
        let process = alive.min_by_key(|process| process.due).expect("a process is alive");
        self.now = process.due;
        let stored = &mut self.stored;
        let (role, due) = match process.role.clone() {
            Role::Standby(mut standby) => {
                let ended = |holder: &LeaseHolder| self.known_ended.contains(holder);
                match standby.read(self.now, stored, ended) {
                    Step::Read { after } => (Role::Standby(standby), self.now + after),
                    Step::Acquire { revision } => {
                        assert_eq!(revision, stored.revision);
                        stored.revision += 1;
                        stored.lease = Some(standby.lease(Timestamp::EPOCH));
                        let holder = process.holder.clone();
                        let holding = Holding::new(holder, LENGTH, self.now, stored.revision);
                        let due = holding.renew_at() + WAY;
                        (Role::Holding(holding), due)
                    }
                }
            }
            Role::Holding(mut holding) if holding.revision() == stored.revision => {
                stored.revision += 1;
                holding.renewed(self.now.saturating_sub(WAY), stored.revision);
                let due = holding.renew_at() + WAY;
                (Role::Holding(holding), due)
            }
            Role::Holding(mut holding) => {
                let refused = holding.refused(stored);
                assert!(matches!(refused, Refusal::Lost(_)), "nothing is lost on the way");
                (Role::Standby(Standby::new(process.holder.clone(), LENGTH)), self.now)
            }
            Role::Ended => unreachable!("filtered above"),
        };
        (process.role, process.due) = (role, due);
        let active = self.active();
        assert!(active.len() <= 1, "at {:?}: {active:?}", self.now);
    }

    fn run_until(&mut self, end: Duration) {
        let is_before =
            |process: &Process| process.due <= end && !matches!(process.role, Role::Ended);
        while self.processes.iter().any(is_before) {
            self.step();
        }
        self.now = end;
    }

    /// When another process than `before` is active.
    fn taken_over(&mut self, before: usize) -> Duration {
        for _ in 0..1_000 {
            self.step();
            if self.active().iter().any(|number| *number != before) {
                return self.now;
            }
        }
        panic!("no takeover until {:?}", self.now);
    }
}

/// Instants of a third of the length, in which the holder renews the lease once.
fn instants() -> impl Iterator<Item = Duration> {
    (0..60).map(|part| LENGTH * 4 + LENGTH * part / 180)
}

/// Three processes that were started shortly after each other.
fn three(delay_ms: u64) -> Site {
    Site::new(&[0, delay_ms, 3 * delay_ms].map(Duration::from_millis))
}

#[test]
fn one_process_keeps_the_lease_for_as_long_as_it_lives() {
    for delay_ms in [1, 70, 900, 4_100] {
        let mut site = three(delay_ms);
        site.run_until(LENGTH);
        assert_eq!(site.active(), [0]);
        for lengths in 2..40 {
            site.run_until(LENGTH * lengths);
            assert_eq!(site.active(), [0], "after {lengths} lengths");
        }
        // A renewal in each third, and no other write.
        assert!((117..=121).contains(&site.stored.revision), "{}", site.stored.revision);
    }
}

#[test]
fn killed_process_is_replaced_within_two_thirds_to_ten_ninths_of_the_length() {
    let (mut shortest, mut longest) = (LENGTH * 2, Duration::ZERO);
    for killed in instants() {
        for delay_ms in [1, 130, 900, 2_050] {
            let mut site = three(delay_ms);
            site.run_until(killed);
            assert_eq!(site.active(), [0]);
            site.processes[0].role = Role::Ended;
            let took = site.taken_over(0) - killed;
            (shortest, longest) = (shortest.min(took), longest.max(took));
        }
    }
    assert!(shortest >= LENGTH * 2 / 3 - WAY, "{shortest:?}");
    assert!(longest <= LENGTH * 10 / 9 + WAY, "{longest:?}");
    // Both bounds are nearly reached.
    assert!(longest > LENGTH && shortest < LENGTH * 3 / 4, "{shortest:?} to {longest:?}");
}

#[test]
fn released_lease_and_that_of_an_ended_process_pass_on_at_the_next_read() {
    for ended in instants() {
        for is_released in [true, false] {
            let mut site = three(130);
            site.run_until(ended);
            site.processes[0].role = Role::Ended;
            if is_released {
                site.stored.revision += 1;
                site.stored.lease.as_mut().unwrap().released = true;
            } else {
                site.known_ended.push(site.processes[0].holder.clone());
            }
            let took = site.taken_over(0) - ended;
            assert!(took <= LENGTH / 9, "{took:?}");
        }
    }
}

#[test]
fn paused_process_returns_to_standby_and_can_work_again() {
    for paused in instants() {
        let mut site = three(130);
        site.run_until(paused);
        // It continues after another process is active.
        site.processes[0].due = paused + LENGTH * 3;
        let took = site.taken_over(0) - paused;
        assert!(took <= LENGTH * 10 / 9 + WAY, "{took:?}");
        let second = site.active()[0];
        site.run_until(paused + LENGTH * 5);
        assert_eq!(site.active(), [second]);
        assert!(matches!(site.processes[0].role, Role::Standby(_)));
        // The others end.
        site.processes[1].role = Role::Ended;
        site.processes[2].role = Role::Ended;
        site.taken_over(second);
        assert_eq!(site.active(), [0]);
    }
}
