//! Names of job states.

use crate::view::SlurmState;

/// The state with this long name, as `squeue` and `sacct` write it: `RUNNING`, `CANCELLED by 5`. Several
/// states are joined by `+` or a comma, the base state first; a flag that frees nothing is decisive.
#[must_use]
pub fn state(text: &str) -> Option<SlurmState> {
    let mut known = names(text).filter_map(single);
    let first = known.next()?;
    // `COMPLETED+COMPLETING` still holds its resources; `PENDING+REQUEUE_HOLD` is pending.
    Some(known.find(|s| matches!(s, SlurmState::Completing)).unwrap_or(first))
}

/// The name of the base state: `CANCELLED` of `CANCELLED by 5` and of the shortened `CANCELLED+`.
#[must_use]
pub fn base_name(text: &str) -> &str {
    names(text).next().unwrap_or_default()
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(['+', ',']).map(|name| name.split_whitespace().next().unwrap_or_default())
}

fn single(name: &str) -> Option<SlurmState> {
    Some(match name {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "REQUEUE_FED"
        | "RESV_DEL_HOLD" => SlurmState::Pending,
        "CONFIGURING" | "POWER_UP_NODE" => SlurmState::Configuring,
        "RUNNING" | "SUSPENDED" | "SIGNALING" | "RESIZING" | "STOPPED" => SlurmState::Running,
        "COMPLETING" | "STAGE_OUT" => SlurmState::Completing,
        "COMPLETED" => SlurmState::Completed,
        "FAILED" | "BOOT_FAIL" | "DEADLINE" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => {
            SlurmState::Failed
        }
        "TIMEOUT" => SlurmState::TimedOut,
        "OUT_OF_MEMORY" => SlurmState::OutOfMemory,
        "CANCELLED" | "REVOKED" | "PREEMPTED" => SlurmState::Cancelled,
        "NODE_FAIL" => SlurmState::NodeFailed,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_beside_the_base_state() {
        assert_eq!(state("RUNNING"), Some(SlurmState::Running));
        assert_eq!(state("CANCELLED by 1000"), Some(SlurmState::Cancelled));
        assert_eq!(state("COMPLETED+COMPLETING"), Some(SlurmState::Completing));
        assert_eq!(state("SPECIAL_EXIT"), Some(SlurmState::Pending));
        assert_eq!(state("PENDING,REQUEUE_HOLD"), Some(SlurmState::Pending));
        assert_eq!(state("DREAMING"), None);
        assert_eq!(base_name("CANCELLED by 1000"), "CANCELLED");
        assert_eq!(base_name("CANCELLED+"), "CANCELLED");
        assert_eq!(base_name(""), "");
    }
}
