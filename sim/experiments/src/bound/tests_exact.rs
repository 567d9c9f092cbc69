//! Exact least cost of a few jobs, by enumeration of the order of events with a linear program
//! each.
//!
//! Between two events (arrivals, completions, and changes of the energy weight) an optimal schedule
//! is constant. For a given order of events the variables are the lengths of the intervals and the
//! seconds of each job in each option and interval; cost and constraints are linear. GPUs and power
//! are limited on average over an interval, a relaxation: the result is at most the true optimum, and
//! the bounds must be below it.

use super::{BoundJob, Supply};

/// The cheapest of all schedules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exact {
    /// Sum of flow times + price of energy times joules.
    pub(super) cost_s: f64,
    pub(super) flow_s: f64,
    /// Weighted.
    pub(super) joules: f64,
}

/// The least sum of flow times + `mu` times joules without contention.
pub(super) fn cheapest(jobs: &[BoundJob], mu: f64) -> f64 {
    let alone = |job: &BoundJob| {
        let costs = job.options.iter().map(|o| job.work * (1.0 + mu * o.power_w) / o.steps_per_s);
        costs.fold(f64::INFINITY, f64::min)
    };
    jobs.iter().map(alone).sum()
}

/// The least sum of flow times + `mu` times joules. `turns` are ascending times at which the energy
/// weight changes, with the new weight; the initial weight is one.
pub(super) fn least_cost(
    jobs: &[BoundJob],
    supply: impl Into<Supply>,
    mu: f64,
    turns: &[(f64, f64)],
) -> Exact {
    let supply = supply.into();
    let mut fixed: Vec<(f64, Event)> = (jobs.iter().enumerate())
        .map(|(job, facts)| (facts.arrival_s, Event::Arrives(job)))
        .chain(turns.iter().enumerate().map(|(turn, &(at_s, _))| (at_s, Event::Turns(turn))))
        .collect();
    fixed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let fixed: Vec<Event> = fixed.into_iter().map(|(_, event)| event).collect();
    let mut best: Option<Exact> = None;
    for order in orders(&fixed, jobs.len(), &mut Vec::new()) {
        if let Some(found) = of_order(jobs, supply, mu, turns, &order)
            && best.is_none_or(|best| found.cost_s < best.cost_s)
        {
            best = Some(found);
        }
    }
    best.expect("jobs one after another are a schedule")
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Arrives(usize),
    Ends(usize),
    Turns(usize),
}

/// Every order of events in which fixed events keep their order and no job ends before it arrives,
/// until the last end.
fn orders(fixed: &[Event], jobs: usize, so_far: &mut Vec<Event>) -> Vec<Vec<Event>> {
    let ended = so_far.iter().filter(|event| matches!(event, Event::Ends(_))).count();
    if ended == jobs {
        return vec![so_far.clone()];
    }
    let come = so_far.len() - ended;
    let mut next: Vec<Event> = Vec::new();
    for event in &fixed[..come] {
        if let Event::Arrives(job) = *event
            && !so_far.contains(&Event::Ends(job))
        {
            next.push(Event::Ends(job));
        }
    }
    next.extend(fixed.get(come).copied());
    let mut all = Vec::new();
    for event in next {
        so_far.push(event);
        all.extend(orders(fixed, jobs, so_far));
        so_far.pop();
    }
    all
}

fn of_order(
    jobs: &[BoundJob],
    supply: Supply,
    mu: f64,
    turns: &[(f64, f64)],
    order: &[Event],
) -> Option<Exact> {
    // Interval i ends with event i; variables: first the lengths, then seconds per (interval, job,
    // option) of the jobs present.
    let mut columns = Vec::new();
    for i in 0..order.len() {
        for (j, job) in jobs.iter().enumerate() {
            let here =
                order[..i].contains(&Event::Arrives(j)) && !order[..i].contains(&Event::Ends(j));
            if here {
                columns.extend(
                    job.options.iter().filter(|o| o.gpus <= supply.gpus).map(|o| (i, j, *o)),
                );
            }
        }
    }
    let (lengths, width) = (order.len(), order.len() + columns.len());
    let row = || vec![0.0; width];
    let (mut at_most, mut equal) = (Vec::new(), Vec::new());
    for i in 0..lengths {
        let mut gpus = row();
        let mut watts = row();
        gpus[i] = -f64::from(supply.gpus);
        for (c, (_, _, option)) in columns.iter().enumerate().filter(|(_, column)| column.0 == i) {
            gpus[lengths + c] = f64::from(option.gpus);
            // In units of the limit, as GPUs are few.
            watts[lengths + c] = option.power_w / supply.watts;
        }
        at_most.push((gpus, 0.0));
        if supply.is_power_limited() {
            watts[i] = -1.0;
            at_most.push((watts, 0.0));
        }
        for j in 0..jobs.len() {
            let mut busy = row();
            busy[i] = -1.0;
            for (c, _) in
                columns.iter().enumerate().filter(|(_, column)| (column.0, column.1) == (i, j))
            {
                busy[lengths + c] = 1.0;
            }
            at_most.push((busy, 0.0));
        }
    }
    for (j, job) in jobs.iter().enumerate() {
        let mut done = row();
        for (c, column) in columns.iter().enumerate().filter(|(_, column)| column.1 == j) {
            done[lengths + c] = column.2.steps_per_s;
        }
        equal.push((done, job.work));
    }
    for (at, event) in order.iter().enumerate() {
        let at_s = match *event {
            Event::Arrives(job) => jobs[job].arrival_s,
            Event::Turns(turn) => turns[turn].0,
            Event::Ends(_) => continue,
        };
        let mut comes = row();
        comes[..=at].fill(1.0);
        equal.push((comes, at_s));
    }
    // The last event precedes the next turn.
    let turned = order.iter().filter(|event| matches!(event, Event::Turns(_))).count();
    if let Some(&(at_s, _)) = turns.get(turned) {
        let mut all = row();
        all[..lengths].fill(1.0);
        at_most.push((all, at_s));
    }
    let mut cost = row();
    for j in 0..jobs.len() {
        let at = order.iter().position(|&event| event == Event::Ends(j))?;
        for length in &mut cost[..=at] {
            *length += 1.0;
        }
    }
    let mut joules = row();
    for (c, (interval, _, option)) in columns.iter().enumerate() {
        let turned = order[..*interval].iter().rev().find_map(|event| match event {
            Event::Turns(turn) => Some(turns[*turn].1),
            _ => None,
        });
        joules[lengths + c] = turned.unwrap_or(1.0) * option.power_w;
        cost[lengths + c] = mu * joules[lengths + c];
    }
    let found = simplex(&cost, &at_most, &equal)?;
    let of = |row: &[f64]| row.iter().zip(&found).map(|(a, b)| a * b).sum::<f64>();
    let arrivals: f64 = jobs.iter().map(|job| job.arrival_s).sum();
    let (cost_s, joules) = (of(&cost) - arrivals, of(&joules));
    Some(Exact { cost_s, flow_s: cost_s - mu * joules, joules })
}

/// Minimizes `cost . x` with `x >= 0` under `<=` and `=` constraints with non-negative right sides;
/// `None` where infeasible. Two-phase simplex with Bland's rule.
fn simplex(
    cost: &[f64],
    at_most: &[(Vec<f64>, f64)],
    equal: &[(Vec<f64>, f64)],
) -> Option<Vec<f64>> {
    const TINY: f64 = 1e-9;
    let (n, slack, rows) = (cost.len(), at_most.len(), at_most.len() + equal.len());
    let width = n + slack + equal.len();
    let mut table: Vec<Vec<f64>> = Vec::new();
    let mut basis = Vec::new();
    for (i, (row, right)) in at_most.iter().chain(equal).enumerate() {
        let mut full = row.clone();
        full.resize(width + 1, 0.0);
        full[n + i] = 1.0;
        full[width] = *right;
        table.push(full);
        basis.push(n + i);
    }
    let mut run = |cost: &dyn Fn(usize) -> f64, columns: usize, table: &mut Vec<Vec<f64>>| {
        loop {
            let gain = |c: usize, table: &[Vec<f64>]| {
                cost(c) - (0..rows).map(|r| cost(basis[r]) * table[r][c]).sum::<f64>()
            };
            let Some(c) = (0..columns).find(|&c| gain(c, table) < -TINY) else { return };
            let mut leave: Option<(f64, usize, usize)> = None;
            for r in 0..rows {
                if table[r][c] > TINY {
                    let candidate = (table[r][width] / table[r][c], basis[r], r);
                    let better = leave.is_none_or(|(ratio, b, _)| {
                        candidate.0 < ratio - 1e-12
                            || (candidate.0 <= ratio + 1e-12 && candidate.1 < b)
                    });
                    if better {
                        leave = Some(candidate);
                    }
                }
            }
            let (_, _, r) = leave.expect("costs are at least zero, so none falls for ever");
            let pivot = table[r][c];
            for value in &mut table[r] {
                *value /= pivot;
            }
            let pivot_row = table[r].clone();
            for (other, row) in table.iter_mut().enumerate() {
                let factor = row[c];
                if other != r && factor != 0.0 {
                    for (value, p) in row.iter_mut().zip(&pivot_row) {
                        *value -= factor * p;
                    }
                }
            }
            basis[r] = c;
        }
    };
    let artificial = |c: usize| if c >= n + slack { 1.0 } else { 0.0 };
    run(&artificial, width, &mut table);
    let real = |c: usize| {
        if c < n {
            cost[c]
        } else if c < n + slack {
            0.0
        } else {
            1e7
        }
    };
    run(&real, n + slack, &mut table);
    let mut x = vec![0.0; width];
    for (r, &column) in basis.iter().enumerate() {
        x[column] = table[r][width];
    }
    if x[n + slack..].iter().any(|&left| left > 1e-6) {
        return None;
    }
    x.truncate(n);
    Some(x)
}
