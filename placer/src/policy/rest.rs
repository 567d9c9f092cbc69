//! Plans that leave nothing to do, for rules whose steps weigh on what they would decide next.
//!
//! A rule that shares out by prices and charges for changes can find, once its plan is carried out,
//! that a little more is worth doing: who was started and cannot stop again weighs on prices from
//! then on, who only awaits its GPUs is free to choose anew, mates that are moved are mates no more.
//! So the plan is carried out on a copy, the rule is asked again there, and what it adds is put to
//! the plan, until it adds nothing. It must not decide anything of its own.

use crate::job::State;
use crate::plan::{Decision, Plan};
use crate::problem::Problem;

/// Far more rounds than any plan was seen to take.
const ROUNDS_MAX: usize = 16;

/// The plan of `solve` with all that it would add once its plan is carried out. `solve` says of a
/// plan, too, whether it is certain to add nothing.
pub(crate) fn at_rest(problem: &Problem, solve: impl Fn(&Problem) -> (Plan, bool)) -> Plan {
    let (mut plan, certain) = solve(problem);
    if certain || plan.is_empty() {
        return plan;
    }
    for _ in 0..ROUNDS_MAX {
        let mut then = problem.clone();
        then.apply(&plan);
        let (next, _) = solve(&then);
        (plan.blocked, plan.again_at) = (next.blocked.clone(), next.again_at);
        if next.is_empty() {
            break;
        }
        add(problem, &mut plan, next);
    }
    plan
}

/// Makes one plan of two, the second of which was made for what the first leaves.
fn add(problem: &Problem, plan: &mut Plan, next: Plan) {
    for decision in next.decisions {
        let job = decision.job();
        let Some(at) = plan.decisions.iter().position(|known| known.job() == job) else {
            plan.decisions.push(decision);
            continue;
        };
        match (&mut plan.decisions[at], decision) {
            // It would be stopped at the instant at which it is started.
            (Decision::Start { .. }, Decision::Stop { .. } | Decision::Undo { .. }) => {
                plan.decisions.remove(at);
            }
            (
                Decision::Start { setting, because, .. },
                Decision::Set { setting: anew, because: why, .. },
            ) => {
                (*setting, *because) = (anew, why);
            }
            (known, decision) => *known = decision,
        }
        let unchanged = |decision: &Decision| match decision {
            Decision::Set { job, setting, .. } => problem.job(*job).is_some_and(
                |job| matches!(&job.state, State::Running { setting: has, .. } if has == setting),
            ),
            _ => false,
        };
        plan.decisions.retain(|decision| !unchanged(decision));
    }
    for decision in next.nodes {
        if plan.nodes.iter().all(|known| known.node() != decision.node()) {
            plan.nodes.push(decision);
        }
    }
}
