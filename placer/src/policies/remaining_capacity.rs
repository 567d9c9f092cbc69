//! How many GPUs are left to give out, by kind, while jobs are served one after the other.
//!
//! A job is bound to a kind where its owner names one, and where it runs or is being moved to; who is
//! bound takes from that kind only. Anybody else takes from the kind with the most to spare beside what
//! those bound to it still ask for, among those that suit it; where it need not wake anybody, if there
//! is such a kind. With one kind of GPU this is counting.

use crate::allocation::first_fit::suits;
use crate::plan::input::PlanningInput;
use crate::state::job::Job;

/// GPUs that answer, asleep or awake, and are nobody's yet.
pub(crate) struct Left<'a> {
    kinds: Vec<Kind<'a>>,
}

struct Kind<'a> {
    name: &'a str,
    gpus: u32,
    /// Of them, those that are awake, as far as those who are served take them first.
    awake: u32,
    /// What those that are bound to it ask for and were not served yet.
    awaited: u32,
}

impl<'a> Left<'a> {
    /// All of them.
    pub(crate) fn of(input: PlanningInput<'a>) -> Self {
        let mut kinds: Vec<Kind<'a>> = Vec::new();
        for node in input.state.nodes() {
            let (name, gpus) = (node.facts.gpu_type.as_str(), node.facts.healthy.count_ones());
            let awake = if node.is_awake() { gpus } else { 0 };
            match kinds.iter_mut().find(|kind| kind.name == name) {
                Some(kind) => (kind.gpus, kind.awake) = (kind.gpus + gpus, kind.awake + awake),
                None => kinds.push(Kind { name, gpus, awake, awaited: 0 }),
            }
        }
        Self { kinds }
    }

    /// Of all kinds together.
    pub(crate) fn all(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.gpus).sum()
    }

    pub(crate) fn several_kinds(&self) -> bool {
        self.kinds.len() > 1
    }

    /// The job will be served in its turn: what it asks for is spared for it if it is bound.
    pub(crate) fn awaits(&mut self, input: PlanningInput<'_>, job: &Job, gpus: u32) {
        if self.several_kinds()
            && let Some(at) = self.bound(input, job)
        {
            self.kinds[at].awaited += gpus;
        }
    }

    /// The job keeps what it has, whether or not that is left.
    pub(crate) fn keeps(&mut self, input: PlanningInput<'_>, job: &Job, gpus: u32) {
        if let Some(at) = self.bound(input, job) {
            self.kinds[at].goes(gpus);
        }
    }

    /// Whether so many are left for a job, of one kind.
    pub(crate) fn fits(&self, input: PlanningInput<'_>, job: &Job, gpus: u32) -> bool {
        self.choice(input, job, gpus, self.bound(input, job)).is_some()
    }

    /// Takes so many for a job, and says of which kind; `None` where not so many are left. The kind
    /// is empty where there is only one.
    pub(crate) fn take(
        &mut self,
        input: PlanningInput<'_>,
        job: &Job,
        gpus: u32,
    ) -> Option<&'a str> {
        let bound = self.bound(input, job);
        if let Some(at) = bound {
            self.kinds[at].awaited = self.kinds[at].awaited.saturating_sub(gpus);
        }
        let at = self.choice(input, job, gpus, bound)?;
        self.kinds[at].goes(gpus);
        Some(if self.several_kinds() { self.kinds[at].name } else { "" })
    }

    /// Whether so many are left of this kind.
    pub(crate) fn has(&self, kind: &str, gpus: u32) -> bool {
        self.kinds.iter().any(|known| known.name == kind && known.gpus >= gpus)
    }

    /// Takes so many of this kind.
    pub(crate) fn take_of(&mut self, kind: &str, gpus: u32) {
        for known in self.kinds.iter_mut().filter(|known| known.name == kind) {
            known.goes(gpus);
        }
    }

    /// The kind that a job is bound to.
    fn bound(&self, input: PlanningInput<'_>, job: &Job) -> Option<usize> {
        if !self.several_kinds() {
            return (!self.kinds.is_empty()).then_some(0);
        }
        let named = job.facts.gpu_type.as_deref().or(job.next_kind.as_deref());
        let name = named.or_else(|| input.state.gpu_type_of(job))?;
        self.kinds.iter().position(|kind| kind.name == name)
    }

    /// The kind that so many for a job are taken of.
    fn choice(
        &self,
        input: PlanningInput<'_>,
        job: &Job,
        gpus: u32,
        bound: Option<usize>,
    ) -> Option<usize> {
        let enough = |at: &usize| self.kinds[*at].gpus >= gpus;
        if let Some(at) = bound {
            return Some(at).filter(enough);
        }
        // What one node can hold is never spread over several.
        let suit = || input.state.nodes().iter().filter(|node| suits(&node.facts, job));
        let one_holds_it = suit().any(|node| node.facts.gpus >= gpus);
        let could = |at: &usize| {
            let mut of_kind = suit().filter(|node| node.facts.gpu_type == self.kinds[*at].name);
            of_kind.any(|node| !one_holds_it || node.facts.gpus >= gpus)
        };
        let spare = |at: &usize| {
            let kind = &self.kinds[*at];
            let awake = kind.awake.saturating_sub(kind.awaited) >= gpus;
            (awake, i64::from(kind.gpus) - i64::from(kind.awaited))
        };
        (0..self.kinds.len()).filter(enough).filter(could).max_by_key(spare)
    }
}

impl Kind<'_> {
    fn goes(&mut self, gpus: u32) {
        self.gpus = self.gpus.saturating_sub(gpus);
        self.awake = self.awake.saturating_sub(gpus);
    }
}
