//! The four ways in which one of several processes is active.

use std::time::Duration;

use tokio::sync::watch;
use wattle_common::id::NodeId;
use wattle_common::messages::LaunchReport;
use wattle_common::subject::LeaseKey;

/// How one of several processes of a service becomes active, and what the others do.
///
/// In the first three modes the claim is a lease, a value in the bucket `leases` that its holder renews
/// after a third of its length L ([`wattle_common::lease`]). A process on standby becomes active
/// * at once if the lease was released, or if the holder ran on the same machine and its process has ended;
/// * otherwise at the first read after L of its own clock in which the store has answered with an unchanged
///   revision. It reads each ninth of L, so this is 2/3 L to 10/9 L after the last instant at which the
///   holder was alive, plus the time of the read.
///
/// An outage of the server does not count: the holder then has a full L to continue. No two clocks are
/// compared.
///
/// | mode | machine on standby | after a pause, the earlier process | services |
/// |---|---|---|---|
/// | [`Fenced`](Self::Fenced) | does not exist | writes nothing | placer, registry |
/// | [`Checked`](Self::Checked) | does not exist | may complete one action | predictor, Slurm, OpenADR |
/// | [`Node`](Self::Node) | runs | may send one message | profiler, power agent |
/// | [`Report`](Self::Report) | runs | its report is replaced | launcher |
#[derive(Clone, Debug)]
pub enum LeaseMode {
    /// One process of the cluster decides, and the store refuses what an earlier one writes.
    ///
    /// The active process opens its buckets as [`ExclusiveBucket`](crate::bus::ExclusiveBucket): its mark
    /// in the bucket precedes all that it reads, and each write names the bucket's last message. So the
    /// values of two processes never mix, also if one of them was paused between a check and a write.
    Fenced {
        /// The lease.
        key: LeaseKey,
        /// Its length L, wall time.
        length: Duration,
    },
    /// One process of the cluster decides, and checks its lease before each action.
    ///
    /// A process that is paused between the check and the action carries out this one action late. The mode
    /// is for actions of which a late one costs only accuracy, or is refused by its receiver.
    Checked {
        /// The lease.
        key: LeaseKey,
        /// Its length L, wall time.
        length: Duration,
    },
    /// Two processes with the name of one node are an error of the configuration: one of them is connected.
    ///
    /// The machine always runs: a profiler measures, a power agent keeps its safe caps. On standby it
    /// receives no orders and sends nothing.
    Node {
        /// The lease.
        key: LeaseKey,
        /// Its length L, wall time: [`NODE_LEASE`](wattle_common::lease::NODE_LEASE), because thousands of
        /// nodes renew it.
        length: Duration,
        /// The alarm of the process on standby: its cause, its effect and the remedy.
        on_standby: &'static str,
    },
    /// As [`Self::Node`], but the claim is the launcher's own report (`bus/claim.rs`): it lists the running
    /// jobs, and another process must not start these jobs a second time.
    ///
    /// A process with the same state folder is active at once, because the folder's lock shows that the
    /// earlier one has ended. Another one is active after three heartbeats without a new report, and only
    /// if the last report lists no running job.
    Report {
        /// The node.
        node: NodeId,
        /// The launcher's newest report.
        newest: watch::Receiver<Option<LaunchReport>>,
        /// Interval of the reports, system time.
        heartbeat: Duration,
        /// As in [`Self::Node`].
        on_standby: &'static str,
    },
}

impl LeaseMode {
    /// The lease and its length; `None` if the claim is a report.
    #[must_use]
    pub const fn lease(&self) -> Option<(&LeaseKey, Duration)> {
        match self {
            Self::Fenced { key, length }
            | Self::Checked { key, length }
            | Self::Node { key, length, .. } => Some((key, *length)),
            Self::Report { .. } => None,
        }
    }
}
