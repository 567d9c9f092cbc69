//! What happens in the model as time passes: processes end, nodes fail, jobs start.

use super::*;

impl Slurm {
    /// Advances by a span.
    pub(crate) fn tick(&mut self, span: Duration) {
        self.now = self.now + span;
        let now = self.now;
        self.down.retain(|_, back_at| *back_at > now);
        self.end_processes();
        if !self.up {
            return;
        }
        self.receive_ends();
        self.check_processes();
        self.schedule();
        let is_old = |job: &Job| {
            job.shown.state.is_final()
                && job.shown.ended_at.is_some_and(|at| now >= at + MIN_JOB_AGE)
        };
        self.jobs.retain(|_, job| !is_old(job));
        self.saved.push_back((now, self.jobs.clone(), self.next_id));
        while self.saved.front().is_some_and(|(at, ..)| *at + Duration::from_secs(6) < now) {
            self.saved.pop_front();
        }
    }

    fn end_processes(&mut self) {
        let now = self.now;
        let over: Vec<String> = self
            .processes
            .iter()
            .filter(|(_, process)| process.ends_at <= now)
            .map(|(tag, _)| tag.clone())
            .collect();
        for tag in over {
            let Some(process) = self.processes.remove(&tag) else { continue };
            let Some(program) = self.programs.get_mut(&tag) else { continue };
            let ran_ms = process.ends_at.since(process.started_at).as_millis() as u64;
            let exit = match process.stops {
                // A checkpoint.
                Some((code, 0)) => {
                    program.done_ms = (program.done_ms + ran_ms).min(program.work_ms - 1);
                    (code, 0)
                }
                Some(exit) => exit,
                None => {
                    program.done_ms = program.work_ms;
                    program.completed_at.get_or_insert(process.ends_at);
                    let is_late = |at: Timestamp| {
                        second(process.ends_at) >= second(at) && program.exit.is_none()
                    };
                    program.ambiguous |= program.stop_at.is_some_and(is_late);
                    (0, 0)
                }
            };
            let ended = Ended {
                slurm_id: process.slurm_id,
                restarts: process.restarts,
                exit,
                at: process.ends_at,
            };
            self.ended.insert(tag, ended);
        }
    }

    /// The nodes send the ends of batch scripts.
    fn receive_ends(&mut self) {
        for (tag, ended) in std::mem::take(&mut self.ended) {
            let Ended { slurm_id, restarts, exit, at } = ended;
            let now = self.now;
            let is_known = self.jobs.get(&slurm_id).is_some_and(|job| {
                let count = match job.shown.state {
                    SlurmState::Running => restarts,
                    SlurmState::Completing => restarts + 1,
                    _ => return false,
                };
                tag_of(&job.shown) == tag && job.shown.restarts == count
            });
            if !is_known {
                // slurmctld has lost the start, refuses the end, and records it nowhere.
                if let Some(program) = self.programs.get_mut(&tag) {
                    program.ambiguous = true;
                }
                continue;
            }
            let script = ScriptEnd { exit, ended_at: second(at) };
            self.row(slurm_id, restarts, |row| row.script = Some(script));
            let Some(job) = self.jobs.get_mut(&slurm_id).filter(|job| tag_of(&job.shown) == tag)
            else {
                continue;
            };
            let shown = &mut job.shown;
            match shown.state {
                SlurmState::Completing if job.requeues && shown.restarts == restarts + 1 => {
                    let hold = shown.held;
                    let completed = self.programs.get(&tag).and_then(|p| p.completed_at);
                    let requeued = self.rows.iter().rev().find(|(row, _)| row.id == slurm_id);
                    let requeued = requeued.and_then(|(row, _)| row.ended_at);
                    if completed.is_some_and(|at| Some(second(at)) >= requeued)
                        && let Some(program) = self.programs.get_mut(&tag)
                    {
                        program.ambiguous = true;
                    }
                    self.back(slurm_id, hold, "job_requeued_in_held_state");
                }
                SlurmState::Running if shown.restarts == restarts => {
                    shown.on.clear();
                    shown.exit = Some(exit);
                    shown.ended_at = Some(second(now));
                    let state =
                        if exit == (0, 0) { SlurmState::Completed } else { SlurmState::Failed };
                    if exit == (85, 0) {
                        shown.restarts += 1;
                        self.row(slurm_id, restarts, |row| {
                            (row.state, row.exit) = (PastState::Requeued, exit);
                            row.ended_at = Some(second(now));
                        });
                        self.back(slurm_id, true, "JobHeldUser");
                    } else {
                        shown.state = state;
                        self.row(slurm_id, restarts, |row| {
                            (row.state, row.exit) = (PastState::Job(state), exit);
                            row.ended_at = Some(second(now));
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// slurmctld compares its running jobs with the processes of the nodes.
    fn check_processes(&mut self) {
        let now = self.now;
        let jobs = &self.jobs;
        self.processes.retain(|tag, process| {
            jobs.get(&process.slurm_id).is_some_and(|job| {
                let holds = match job.shown.state {
                    SlurmState::Running => job.shown.restarts == process.restarts,
                    SlurmState::Completing => job.shown.restarts == process.restarts + 1,
                    _ => false,
                };
                holds && tag_of(&job.shown) == *tag
            })
        });
        let mut failed = Vec::new();
        for (id, job) in &mut self.jobs {
            let is_live = matches!(job.shown.state, SlurmState::Running | SlurmState::Completing);
            let tag = tag_of(&job.shown);
            let has_process = self.processes.get(&tag).is_some_and(|p| p.slurm_id == *id);
            if !is_live || has_process {
                job.missing_since = None;
            } else if now >= *job.missing_since.get_or_insert(now) + NODE_TIMEOUT {
                failed.push((*id, job.requeues, job.shown.held));
            }
        }
        for (id, requeues, held) in failed {
            if !requeues && let Some(job) = self.jobs.get_mut(&id) {
                let restarts = job.shown.restarts;
                job.shown.restarts += 1;
                self.row(id, restarts, |row| {
                    row.state = PastState::Job(SlurmState::NodeFailed);
                    row.ended_at = Some(second(now));
                });
            }
            self.back(id, requeues && held, "NodeFail");
        }
    }

    /// GPUs that jobs hold as this resource on a node.
    fn used(&self, node: &NodeId, guests: bool) -> BTreeSet<GpuIndex> {
        let mut used = BTreeSet::new();
        for job in self.jobs.values() {
            let names = named(&job.shown.gres, "guest");
            for share in job.shown.on.iter().filter(|share| share.node == *node) {
                used.extend(share.gpus.iter().filter(|gpu| names.contains(gpu) == guests));
            }
        }
        used
    }

    /// The GPUs that a job would get on a node.
    fn fit(&self, node: &NodeId, gres: &str) -> Option<Vec<GpuIndex>> {
        if self.down.contains_key(node) {
            return None;
        }
        let (gpus, guests) = (named(gres, "gpu"), named(gres, "guest"));
        let used = self.used(node, false);
        if let Some(count) = gres.strip_prefix("gpu:").and_then(|text| text.parse::<usize>().ok()) {
            let free: Vec<GpuIndex> = (0..GPUS).filter(|gpu| !used.contains(gpu)).collect();
            return (free.len() >= count).then(|| free[..count].to_vec());
        }
        let is_free = gpus.is_disjoint(&used) && guests.is_disjoint(&self.used(node, true));
        is_free.then(|| gpus.union(&guests).copied().collect())
    }

    fn schedule(&mut self) {
        let now = self.now;
        let waiting: Vec<u32> = self
            .jobs
            .iter()
            .filter(|(_, job)| {
                job.shown.state == SlurmState::Pending && !job.shown.held && job.begin <= now
            })
            .map(|(id, _)| *id)
            .collect();
        for job in self.jobs.values_mut() {
            job.shown.waits = job.shown.state == SlurmState::Pending && job.begin > now;
        }
        for id in waiting {
            let delay = self.delay(800);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if *job.start_at.get_or_insert(now + delay) > now {
                continue;
            }
            let (gres, count) = (job.shown.gres.clone(), job.shown.nodes as usize);
            let required = job.shown.required_nodes.clone();
            let nodes = if required.is_empty() { self.nodes.clone() } else { required };
            let fits = nodes.iter().filter_map(|node| {
                let gpus = self.fit(node, &gres)?;
                Some(NodeShare { node: node.clone(), gpus })
            });
            let on: Vec<NodeShare> = fits.take(count).collect();
            if on.len() == count {
                self.start(id, on);
            } else if let Some(job) = self.jobs.get_mut(&id) {
                job.shown.reason = "Resources".to_owned();
            }
        }
    }

    fn start(&mut self, id: u32, on: Vec<NodeShare>) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let shown = &mut job.shown;
        (shown.state, shown.started_at) = (SlurmState::Running, Some(second(now)));
        shown.reason = "None".to_owned();
        shown.on.clone_from(&on);
        let tag = tag_of(shown);
        let by_machine = job.by_machine;
        let Some(program) = self.programs.get_mut(&tag) else { return };
        assert!(
            program.completed_at.is_none() || program.ambiguous || !job.by_machine,
            "the machine starts job {id} again, which has completed: {program:?} {:?}",
            self.rows.iter().filter(|(row, _)| row.id == id).collect::<Vec<_>>()
        );
        program.starts += 1;
        program.stop_at = None;
        let rest_ms = program.work_ms.saturating_sub(program.done_ms).max(1);
        let process = Process {
            slurm_id: id,
            restarts: shown.restarts,
            on,
            started_at: now,
            ends_at: now + Duration::from_millis(rest_ms),
            stops: None,
            by_machine,
        };
        let row = PastRun {
            id,
            user: shown.user.clone(),
            state: PastState::Job(SlurmState::Running),
            exit: (0, 0),
            submitted_at: shown.submitted_at,
            started_at: Some(second(now)),
            ended_at: None,
            admin_comment: shown.admin_comment.clone(),
            script: None,
        };
        self.rows.push((row, shown.restarts));
        self.processes.insert(tag, process);
    }

    /// The GPUs on which more than one process runs that the machine has placed, with the tags of the jobs
    /// there. Slurm does not take a guest's GPU as held, so it may give it to another partition's job.
    pub(crate) fn shared(&self) -> BTreeMap<(NodeId, GpuIndex), Vec<String>> {
        let mut on: BTreeMap<(NodeId, GpuIndex), Vec<String>> = BTreeMap::new();
        for (tag, process) in self.processes.iter().filter(|(_, process)| process.by_machine) {
            for share in &process.on {
                for gpu in &share.gpus {
                    on.entry((share.node.clone(), *gpu)).or_default().push(tag.clone());
                }
            }
        }
        on.retain(|_, tags| tags.len() > 1);
        on
    }
}
