//! Nodes whose power agents only advise: the caps and clocks that they would set.

use wattle_common::messages::AppliedGpu;

use crate::output::Align;
use crate::quantity::watts;
use wattle_view::node::Node;

/// The columns of advised settings.
pub(super) const COLUMNS: [(&str, Align); 2] =
    [("ADVISED W", Align::Right), ("ADVISED MHz", Align::Right)];

/// Whether the node's power agent only advises.
pub(super) fn is_advised(node: &Node) -> bool {
    node.power.as_ref().is_some_and(|report| report.advise_only)
}

/// The cells of [`COLUMNS`].
pub(super) fn cells(gpu: &AppliedGpu) -> [String; 2] {
    let clock = gpu.clock_mhz_max_advised.map(|clock| clock.as_mhz().to_string());
    [gpu.cap_mw_advised.map(watts).unwrap_or_default(), clock.unwrap_or_default()]
}

/// States that a node is advised only.
pub(super) fn note(node: &Node) -> Option<String> {
    is_advised(node).then(|| {
        format!(
            "{}: advised only: its power agent sets no caps and clocks (control = \"advise\" in its \
             power-agent.toml); --wide shows the advised ones",
            node.node
        )
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::{Frequency, Power, Timestamp};

    use crate::commands::nodes::tests::two_nodes;
    use crate::commands::nodes::{faults, table};

    #[test]
    fn advised_settings_stand_beside_the_real_ones() {
        let mut nodes = two_nodes();
        let report = nodes[0].power.as_mut().unwrap();
        report.advise_only = true;
        report.gpus[0].cap_mw_advised = Some(Power::from_w(175));
        report.gpus[0].clock_mhz_max_advised = Some(Frequency::from_mhz(1_200));
        let now = Timestamp::from_s(100);
        let wide = table(&nodes, now, true, 80).render(false);
        let lines: Vec<Vec<&str>> =
            wide.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines[0].windows(2).any(|words| words == ["ADVISED", "W"]), "{wide}");
        assert!(lines[1].contains(&"250") && lines[1].contains(&"175"), "{wide}");
        assert!(lines[1].contains(&"1200"), "{wide}");
        assert!(!table(&nodes, now, false, 80).render(false).contains("ADVISED"));
        let noted: Vec<String> = nodes.iter().flat_map(|node| faults(node, now, 1)).collect();
        assert!(noted[0].starts_with("n0: advised only"), "{noted:?}");
        assert_eq!(noted.iter().filter(|line| line.contains("advised")).count(), 1);
    }
}
