//! The plan run forward: when each queued job starts if nothing else is submitted.
//!
//! A loop over the instants at which GPUs become free or a queued job may start. At each, jobs start in the order of
//! service by first fit ([`FreeGpus`]). [`Service`] states whether a later job may start before the first one that does
//! not fit, the head:
//!
//! * in order: none;
//! * backfilled: one that does not delay the head. The head has a reservation, the earliest instant at which the GPUs
//!   that are expected to be free then hold it. A later job starts if it is expected to end before, or where the head
//!   does not need the GPUs. Expected are the ends by time limits under the policy `backfill`, which knows no others,
//!   and by predicted run times otherwise.
//!
//! Jobs of equal size and equal shapes of nodes form a class, of which one job that does not fit stands for all. With
//! `n` jobs and few classes a schedule takes of the order of `n log n` steps; at most [`EXAMINED_MAX`] jobs of a class
//! are examined at an instant.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use wattle_common::Timestamp;

use super::free_gpus::{FreeGpus, Part, Shapes, entire_parts};

/// Most jobs of a class that are examined for backfilling at an instant: our own choice.
const EXAMINED_MAX: usize = 50;

/// Whether a later job may start before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueDiscipline {
    Strict,
    Backfilled,
}

/// A queued job.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Number of its GPUs.
    pub(super) gpus: u32,
    /// The shapes of nodes that suit it, in node order.
    pub(super) shapes: Vec<u32>,
    /// When it may start.
    pub(super) not_before: Timestamp,
    /// Its run time on each shape.
    pub(super) run_times: Vec<Duration>,
    /// Its time limit; absent: its run time.
    pub(super) limit: Option<Duration>,
}

/// GPUs that are held now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) part: Part,
    /// When they become free.
    pub(super) until: Timestamp,
    /// When they are expected to become free by time limits.
    pub(super) limit_at: Timestamp,
}

/// The expected run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    pub(super) on: Vec<Part>,
}

/// Jobs of one size for the same nodes.
struct Class {
    gpus: u32,
    shapes: Vec<u32>,
    /// Those that may start now, by their place in the order of service.
    queue: BTreeSet<usize>,
}

/// The earliest start of the head.
struct Reservation {
    at: Timestamp,
    gpus: u32,
    /// The GPUs that are free then on the reserved nodes, less those of jobs that start now and end later.
    free_then: BTreeMap<u32, u32>,
    /// Whether the head needs each of these nodes entirely.
    entire: bool,
}

impl Reservation {
    /// Whether the head still fits if these GPUs are not free at its start.
    fn spares(&self, node: u32, gpus: u32) -> bool {
        let Some(free) = self.free_then.get(&node) else { return true };
        !self.entire && *free >= self.gpus + gpus
    }

    fn give_up(&mut self, part: Part) {
        if let Some(free) = self.free_then.get_mut(&part.node) {
            *free = free.saturating_sub(part.gpus);
        }
    }
}

struct Schedule<'a> {
    now: Timestamp,
    discipline: QueueDiscipline,
    jobs: &'a [Waiting],
    free: FreeGpus,
    classes: Vec<Class>,
    class_of: Vec<usize>,
    /// GPUs that are held, by number.
    held: Vec<Held>,
    /// When each of them becomes free.
    ends: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// When each is expected to, by time limits.
    limits: BTreeSet<(Timestamp, usize)>,
    runs: Vec<Option<Run>>,
}

/// The expected runs of `jobs`, which are in the order of service; `None`: there are never enough GPUs for the job, or
/// in strict order for one before it.
pub(super) fn forward(
    now: Timestamp,
    discipline: QueueDiscipline,
    free: FreeGpus,
    held: Vec<Held>,
    jobs: &[Waiting],
) -> Vec<Option<Run>> {
    let mut schedule = Schedule {
        now,
        discipline,
        jobs,
        free,
        classes: Vec::new(),
        class_of: Vec::with_capacity(jobs.len()),
        held: Vec::with_capacity(held.len() + jobs.len()),
        ends: BinaryHeap::with_capacity(held.len() + jobs.len()),
        limits: BTreeSet::new(),
        runs: vec![None; jobs.len()],
    };
    held.into_iter().for_each(|held| schedule.hold(held));
    schedule.classify();
    schedule.run();
    schedule.runs
}

impl Schedule<'_> {
    fn hold(&mut self, held: Held) {
        let number = self.held.len();
        self.ends.push(Reverse((held.until.max(self.now), number)));
        if self.discipline == QueueDiscipline::Backfilled {
            self.limits.insert((held.limit_at, number));
        }
        self.held.push(held);
    }

    fn classify(&mut self) {
        let mut known: BTreeMap<(u32, &Shapes), usize> = BTreeMap::new();
        for job in self.jobs {
            let class = *known.entry((job.gpus, &job.shapes)).or_insert_with(|| {
                let (gpus, shapes) = (job.gpus, job.shapes.clone());
                self.classes.push(Class { gpus, shapes, queue: BTreeSet::new() });
                self.classes.len() - 1
            });
            self.class_of.push(class);
        }
    }

    fn run(&mut self) {
        let mut later: Vec<(Timestamp, usize)> = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            if job.not_before <= self.now {
                self.classes[self.class_of[index]].queue.insert(index);
            } else {
                later.push((job.not_before, index));
            }
        }
        // The earliest last.
        later.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = self.jobs.len();
        loop {
            left -= self.serve();
            let end = self.ends.peek().map(|Reverse((at, _))| *at);
            let next = end.into_iter().chain(later.last().map(|(at, _)| *at)).min();
            let Some(at) = next.filter(|_| left > 0) else { return };
            self.now = at;
            while let Some((_, index)) = later.pop_if(|(due, _)| *due <= at) {
                self.classes[self.class_of[index]].queue.insert(index);
            }
            while let Some(&Reverse((due, number))) = self.ends.peek()
                && due <= at
            {
                self.ends.pop();
                let Held { part, limit_at, .. } = self.held[number];
                self.limits.remove(&(limit_at, number));
                self.free.release(part);
            }
        }
    }

    /// Starts the jobs that may start now. Returns their number.
    fn serve(&mut self) -> usize {
        let mut started = 0;
        // Of a class without room no further job has room at this instant.
        let mut full = vec![false; self.classes.len()];
        let head = loop {
            let open = self.classes.iter().enumerate().filter(|(class, _)| !full[*class]);
            let first = open.filter_map(|(class, of)| Some((*of.queue.first()?, class))).min();
            let Some((index, class)) = first else { return started };
            let of = &self.classes[class];
            if let Some(on) = self.free.first_fit(&of.shapes, of.gpus, |_| true) {
                self.start(index, on);
                started += 1;
            } else {
                full[class] = true;
                break index;
            }
        };
        if self.discipline == QueueDiscipline::Strict {
            return started;
        }
        for (of, full) in self.classes.iter().zip(&mut full) {
            *full |= of.queue.is_empty() || !self.free.has_room(&of.shapes, of.gpus);
        }
        if full.iter().all(|full| *full) {
            return started;
        }
        let mut reservation = self.reserve(head);
        started + self.backfill(&mut full, reservation.as_mut())
    }

    /// Starts later jobs that do not delay the head. Without a reservation every job that fits starts.
    fn backfill(&mut self, full: &mut [bool], mut reservation: Option<&mut Reservation>) -> usize {
        let mut started = 0;
        // The next job of each class that is examined.
        let mut next: Vec<usize> = vec![0; self.classes.len()];
        let mut examined = vec![0; self.classes.len()];
        // Free GPUs only become fewer at an instant, so a class without room that the head spares has none later.
        let mut spared = vec![true; self.classes.len()];
        loop {
            let open = self.classes.iter().enumerate().filter(|(class, _)| !full[*class]);
            let first = open
                .filter_map(|(class, of)| Some((*of.queue.range(next[class]..).next()?, class)))
                .min();
            let Some((index, class)) = first else { return started };
            next[class] = index + 1;
            examined[class] += 1;
            let (job, of) = (&self.jobs[index], &self.classes[class]);
            let limit = job.limit.or_else(|| job.run_times.iter().max().copied());
            let end = self.now + limit.unwrap_or_default();
            let delaying = reservation.as_deref_mut().filter(|reservation| reservation.at < end);
            let on = match &delaying {
                Some(_) if !spared[class] => None,
                None => self.free.first_fit(&of.shapes, of.gpus, |_| true),
                Some(reservation) => {
                    let spares = |node| reservation.spares(node, of.gpus);
                    self.free.first_fit(&of.shapes, of.gpus, spares)
                }
            };
            spared[class] &= delaying.is_none() || on.is_some();
            full[class] = (on.is_none() && delaying.is_none()) || examined[class] >= EXAMINED_MAX;
            let Some(on) = on else { continue };
            if let Some(reservation) = delaying {
                on.iter().for_each(|part| reservation.give_up(*part));
            }
            self.start(index, on);
            started += 1;
        }
    }

    /// A job starts now.
    fn start(&mut self, index: usize, on: Vec<Part>) {
        self.classes[self.class_of[index]].queue.remove(&index);
        let job = &self.jobs[index];
        let shape = on.first().map_or(0, |part| self.free.shape_of(part.node));
        let run_time = job.run_times.get(shape as usize).copied().unwrap_or_default();
        let end = self.now + run_time;
        let limit_at = self.now + job.limit.unwrap_or(run_time);
        for &part in &on {
            self.free.take(part);
            self.hold(Held { part, until: end, limit_at });
        }
        self.runs[index] = Some(Run { start: self.now, end, on });
    }

    /// The reservation of the head; `None` if the expected ends do not free enough GPUs.
    fn reserve(&self, head: usize) -> Option<Reservation> {
        let Waiting { gpus, shapes, .. } = &self.jobs[head];
        let fits_a_node = self.free.fits_a_node(shapes, *gpus);
        let mut freed: BTreeMap<u32, u32> = BTreeMap::new();
        // Nodes that are entirely free then, by shape.
        let mut entire: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        if !fits_a_node {
            for node in self.free.entirely_free(shapes) {
                entire.entry(self.free.shape_of(node)).or_default().insert(node);
            }
        }
        for &(at, number) in &self.limits {
            let part = self.held[number].part;
            let shape = self.free.shape_of(part.node);
            if !shapes.contains(&shape) {
                continue;
            }
            let more = freed.entry(part.node).or_default();
            *more += part.gpus;
            let free = self.free.free(part.node) + *more;
            let at = at.max(self.now);
            if fits_a_node {
                if free >= *gpus {
                    let free_then = BTreeMap::from([(part.node, free)]);
                    return Some(Reservation { at, gpus: *gpus, free_then, entire: false });
                }
                continue;
            }
            let size = self.free.size_of(shape);
            if free < size {
                continue;
            }
            let of_shape = entire.entry(shape).or_default();
            of_shape.insert(part.node);
            let is_enough = of_shape.len() as u64 * u64::from(size) >= u64::from(*gpus);
            let on = is_enough.then(|| entire_parts(of_shape.iter().copied(), size, *gpus));
            if let Some(on) = on.flatten() {
                let free_then = on.iter().map(|part| (part.node, size)).collect();
                return Some(Reservation { at, gpus: *gpus, free_then, entire: true });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
