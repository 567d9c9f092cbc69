//! Faults of nodes, GPUs, clocks, the store, the bus and the placer.

use wattle_common::messages::SiteNode;

use super::*;

impl World {
    pub(in crate::live::tests) fn set_unhealthy(
        &mut self,
        node: &str,
        gpu: GpuIndex,
        unhealthy: bool,
    ) {
        let node = self.node_mut(node);
        if unhealthy {
            node.unhealthy.insert(gpu)
        } else {
            node.unhealthy.remove(&gpu)
        };
    }
    /// The power agent reports this condition of a GPU.
    pub(in crate::live::tests) fn set_condition(
        &mut self,
        node: &str,
        gpu: GpuIndex,
        condition: Option<GpuConditionKind>,
    ) {
        let node = self.node_mut(node);
        match condition {
            Some(condition) => node.conditions.insert(gpu, condition),
            None => node.conditions.remove(&gpu),
        };
    }
    /// The site's scheduler runs the jobs of this node.
    pub(in crate::live::tests) fn set_site(&mut self, node: &str, site: SiteNode) {
        self.node_mut(node).site = Some(site);
        self.report();
    }
    /// The service of the site's scheduler reports ends without an order until they are recorded.
    pub(in crate::live::tests) fn keep_ends(&mut self, node: &str) {
        self.node_mut(node).keeps_ends = true;
    }
    /// The site's scheduler reports this state of a job on a node.
    pub(in crate::live::tests) fn site_run(
        &mut self,
        node: &str,
        job: &str,
        attempt: u32,
        gpus: &[GpuIndex],
        state: LaunchState,
    ) {
        let job = JobId::new(job).unwrap();
        let since_us = self.now;
        // The service of the site's scheduler has the admission from the record.
        let admission = self.jobs.get(&job).and_then(|record| record.admission.clone());
        let run = LaunchedJob {
            job: job.clone(),
            admission: admission.clone(),
            attempt,
            gpus: gpus.to_vec(),
            state,
            processes: None,
            since_us,
            log_path: format!("/home/{job}.out"),
        };
        self.node_mut(node).runs.insert((job, admission, attempt), run);
        self.report();
    }
    /// These GPUs have not been read yet.
    pub(in crate::live::tests) fn unread(&mut self, node: &str, gpus: &[GpuIndex]) {
        self.node_mut(node).unread = gpus.iter().copied().collect();
        self.report();
    }
    /// Sets the GPU type of a node; before any job is submitted.
    pub(in crate::live::tests) fn set_gpu_type(&mut self, node: &str, gpu_type: &'static str) {
        self.node_mut(node).gpu_type = gpu_type;
        self.report();
    }
    /// Sets the leaf switch and the number of GPUs per board that a node reports.
    pub(in crate::live::tests) fn set_location(
        &mut self,
        node: &str,
        switch: &'static str,
        board: Option<u32>,
    ) {
        self.node_mut(node).place = (Some(switch), board);
        self.report();
    }
    pub(in crate::live::tests) fn cut_off(&mut self, node: &str, cut_off: bool) {
        let node = self.node_mut(node);
        (node.cut_off, node.reconnected) = (cut_off, node.cut_off && !cut_off);
    }
    pub(in crate::live::tests) fn refuses_caps(&mut self, node: &str, why: Option<&str>) {
        self.node_mut(node).refuses = why.map(str::to_owned);
    }
    pub(in crate::live::tests) fn advises_only(&mut self, node: &str, advises: bool) {
        self.node_mut(node).advises = advises;
    }
    pub(in crate::live::tests) fn supports_no_cap(&mut self, node: &str, gpu: GpuIndex) {
        self.node_mut(node).without_cap.insert(gpu);
    }
    pub(in crate::live::tests) fn set_node_limit(
        &mut self,
        node: &str,
        limit: wattle_common::Power,
    ) {
        self.node_mut(node).limit = Some(limit);
    }
    /// The disk of a node's launcher is full, or works again.
    pub(in crate::live::tests) fn set_broken(&mut self, node: &str, is_broken: bool) {
        let node = self.node_mut(node);
        node.is_broken = is_broken;
        if !is_broken {
            node.fault = None;
        }
    }
    /// Reboots a node: its running jobs are lost.
    pub(in crate::live::tests) fn reboot(&mut self, node: &str) {
        for run in self.node_mut(node).runs.values_mut().filter(|run| is_live(run)) {
            run.state = LaunchState::Lost { error: "the node went down".to_owned() };
        }
    }
    pub(in crate::live::tests) fn simulated_sleep(&mut self, node: &str) -> &mut SimulatedSleep {
        &mut self.node_mut(node).sleep
    }
    pub(in crate::live::tests) fn set_state(&mut self, node: &str, job: &str, state: LaunchState) {
        let runs = &mut self.node_mut(node).runs;
        let run = runs.values_mut().rfind(|run| run.job.as_str() == job).unwrap();
        run.state = state;
    }
    /// A program ends a second later, before the next report of the power agent.
    pub(in crate::live::tests) fn exits_before_the_gpus_are_read(
        &mut self,
        node: &str,
        job: &str,
        code: i32,
    ) {
        self.now = self.now + Duration::from_secs(1);
        self.set_state(node, job, LaunchState::exited(code));
        let now = self.now;
        let node = self.node_mut(node);
        let run = node.runs.values_mut().rfind(|run| run.job.as_str() == job).unwrap();
        run.since_us = now;
        let report = node.launch(now);
        self.deliver(Event::LaunchReported(report));
    }
    /// The power agent is silent; the launcher reports once a second.
    pub(in crate::live::tests) fn only_the_launcher_reports(&mut self, node: &str, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            let (_, report) = self.reports(node);
            self.deliver(Event::LaunchReported(report));
        }
    }
    /// The placer is paused; the nodes continue.
    pub(in crate::live::tests) fn pause_placer(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }
    /// The placer and the nodes continue for a second, and the nodes' reports are lost.
    pub(in crate::live::tests) fn pass_without_reports(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        self.wake();
        self.carry_out_orders();
    }
    /// Sets the clock of a node back while its services restart.
    pub(in crate::live::tests) fn set_clock_back(&mut self, node: &str, seconds: u64) {
        let node = self.node_mut(node);
        node.instance += 1;
        node.behind = Duration::from_secs(seconds);
    }
    /// Reports of a second launcher without jobs alternate with those of the first.
    pub(in crate::live::tests) fn second_launcher(&mut self, node: &str) {
        for _ in 0..2 {
            self.pass(5);
            let at = self.now;
            let node = self.node_mut(node);
            let report = LaunchReport {
                instance: "process 2".to_owned(),
                jobs: Vec::new(),
                ..node.launch(at)
            };
            self.deliver(Event::LaunchReported(report));
        }
    }
    /// The server loses these records and all orders while the placer continues.
    pub(in crate::live::tests) fn lose_values(&mut self, jobs: &[&str]) {
        self.jobs.retain(|job, _| !jobs.contains(&job.as_str()));
        self.orders.clear();
        self.deliver(Event::StoreIncomplete);
    }
    /// The store is lost, and the placer starts without any record or report.
    pub(in crate::live::tests) fn lose_store(&mut self) {
        self.jobs.clear();
        self.orders.clear();
        let (empty, now) = (PersistedState::default(), self.placer_now());
        self.placer = Placer::new(self.config.clone(), (self.policy)(), empty, now);
    }
    /// The store of an earlier time is restored, and a placer starts.
    pub(in crate::live::tests) fn restore_store(
        &mut self,
        jobs: BTreeMap<JobId, JobRecord>,
        orders: BTreeMap<NodeId, NodeDesired>,
        at: Timestamp,
    ) {
        (self.jobs, self.orders) = (jobs, orders);
        self.restored = Some(StoreRestored { backup_at_us: at, restored_at_us: self.now });
        self.restart();
    }
    /// A node's launcher no longer knows a job's ended runs.
    pub(in crate::live::tests) fn forget_run(&mut self, node: &str, job: &str) {
        self.node_mut(node).runs.retain(|(known, ..), _| known.as_str() != job);
    }
    /// The message bus is unavailable for some seconds.
    pub(in crate::live::tests) fn bus_outage(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.deliver(Event::BusReturned);
    }
    pub(in crate::live::tests) fn restart(&mut self) {
        let state = PersistedState {
            jobs: self.jobs.values().cloned().collect(),
            desired: self.orders.values().cloned().collect(),
            power: self.nodes.iter().map(|node| node.reports(self.now).0).collect(),
            launch: self.nodes.iter().map(|node| node.reports(self.now).1).collect(),
            surfaces: vec![],
            budget: self.budget.clone(),
            budget_status: self.budget_status.clone(),
            events: self.events.clone(),
            event_jobs: self.event_jobs.clone(),
            site_power: (self.site_minutes.last().cloned(), self.ledger.clone()),
            aim_status: self.aim_status.clone(),
            grid: self.grid.clone(),
            twin: self.twin.clone(),
            expected: self.expected.clone(),
            restored: self.restored,
        };
        self.placers += 1;
        let now = self.placer_now();
        self.placer = Placer::new(self.config.clone(), (self.policy)(), state, now);
    }
    /// The placer is lost. After `seconds` another one, whose clock is ahead by `ahead_s`, takes over from the
    /// store.
    pub(in crate::live::tests) fn fail_over(&mut self, seconds: u64, ahead_s: i64) {
        self.log.push(format!("--- another placer takes over, {ahead_s} s ahead ---"));
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.work();
            self.finish_waking();
            self.carry_out_orders();
        }
        self.ahead_s = ahead_s;
        self.restart();
    }
}
