//! Greedy sharing of GPUs: the best next step of any job is taken until none is left.
//!
//! Policies that share GPUs out in this way differ in the first operating points and in the rating of a step;
//! the rest is this module.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::allocation::capacity::TypeCounts;
use crate::policies::elastic::{ElasticJob, Sizing};
use crate::state::gpu_set::JobKey;
use crate::state::operating_points::{OperatingPoint, OperatingPoints};

/// A job that has GPUs, at its present operating point.
#[derive(Debug)]
pub struct Grant<'a> {
    /// The job.
    pub job: ElasticJob<'a>,
    /// Its operating point.
    pub point: &'a OperatingPoint,
    /// The rating of its last step; infinite before the first.
    pub last_rating: f64,
}

/// A step of one job. Steps are ordered by `rating`, then by `tie_break`, then by arrival.
#[derive(Clone, Copy, Debug)]
pub struct RatedStep<'a> {
    /// The operating point after it.
    pub to: &'a OperatingPoint,
    /// The policy's rating of it.
    pub rating: f64,
    /// The order of steps of equal rating.
    pub tie_break: f64,
}

/// The best next step of the job at `index`.
struct Offer<'a> {
    step: RatedStep<'a>,
    index: usize,
}

impl Ord for Offer<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rating = self.step.rating.total_cmp(&other.step.rating);
        by_rating
            .then(self.step.tie_break.total_cmp(&other.step.tie_break))
            .then(other.index.cmp(&self.index))
    }
}
impl PartialOrd for Offer<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Offer<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Offer<'_> {}

/// A job that gets no GPUs.
#[derive(Debug)]
pub struct Unserved<'a> {
    /// The job.
    pub job: ElasticJob<'a>,
    /// Jobs that got GPUs before it.
    pub before: u32,
    /// GPUs of its type that were free in its turn.
    pub free: u32,
}

/// Gives the jobs their first operating points in order, as far as GPUs are free. Jobs in `excluded`
/// get none.
pub fn first_grants<'a>(
    sizing: &mut Sizing<'a>,
    excluded: &BTreeSet<JobKey>,
    first_point: impl Fn(&ElasticJob<'a>) -> Option<&'a OperatingPoint>,
) -> (Vec<Grant<'a>>, Vec<Unserved<'a>>) {
    let (mut grants, mut unserved) = (Vec::new(), Vec::new());
    for job in std::mem::take(&mut sizing.jobs) {
        let Some(point) = first_point(&job) else { continue };
        if !excluded.contains(&job.key) && sizing.free.take(job.gpu_type(), point.gpus) {
            grants.push(Grant { job, point, last_rating: f64::INFINITY });
        } else {
            let (before, free) = (grants.len() as u32, sizing.free.of_type(job.gpu_type()));
            unserved.push(Unserved { job, before, free });
        }
    }
    (grants, unserved)
}

/// Takes the best step of all jobs until there is none. `next` is the best step of one job that needs
/// at most the given number of further GPUs; it depends on the job's operating points only.
///
/// A job that has one size only does not compete for GPUs, so its steps are taken at once, and computed once
/// for all jobs with the same points.
pub fn take_best_steps<'a>(
    grants: &mut [Grant<'a>],
    free: &mut TypeCounts<'_>,
    next: impl Fn(&Grant<'a>, u32) -> Option<RatedStep<'a>>,
) {
    let offer = |index: usize, grant: &Grant<'a>, free: &TypeCounts<'_>| {
        let step = next(grant, free.of_type(grant.job.gpu_type()))?;
        Some(Offer { step, index })
    };
    // Looked up by address only, so addresses decide nothing.
    let mut known: BTreeMap<*const OperatingPoints, (&OperatingPoint, f64)> = BTreeMap::new();
    let mut offers: BinaryHeap<Offer<'a>> = BinaryHeap::new();
    for (index, grant) in grants.iter_mut().enumerate() {
        if !grant.job.has_one_size() {
            offers.extend(offer(index, grant, free));
            continue;
        }
        let last = known.entry(std::ptr::from_ref(grant.job.points)).or_insert_with(|| {
            while let Some(step) = next(grant, 0) {
                (grant.point, grant.last_rating) = (step.to, step.rating);
            }
            (grant.point, grant.last_rating)
        });
        (grant.point, grant.last_rating) = *last;
    }
    while let Some(Offer { step, index }) = offers.pop() {
        let grant = &mut grants[index];
        if free.take(grant.job.gpu_type(), step.to.gpus - grant.point.gpus) {
            (grant.point, grant.last_rating) = (step.to, step.rating);
        }
        // A step offered when more GPUs were free is replaced by the next best.
        offers.extend(offer(index, &grants[index], free));
    }
}
