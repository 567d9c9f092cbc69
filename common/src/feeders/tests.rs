//! Trees of feeders: what is refused, and every limit whole and with each feeder lost.

use proptest::prelude::*;

use super::*;

fn id(name: &str) -> FeederId {
    FeederId::new(name).unwrap()
}

fn feeder(name: &str, parent: Option<&str>, limit_w: u64, load_w: u64) -> Feeder {
    Feeder {
        name: id(name),
        parent: parent.map(id),
        limit_mw: Power::from_w(limit_w),
        static_load_mw: Power::from_w(load_w),
    }
}

fn node(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).unwrap()
}

fn on(index: usize, feeds: &[&str], min_feeds: u32) -> Connection {
    let feeds = feeds.iter().map(|feed| id(feed)).collect();
    Connection { nodes: [node(index)].into(), feeds, min_feeds }
}

/// Two boards with a PDU each; n0 is on both, n1 on the first, n2 needs both.
fn two_sides() -> (Vec<Feeder>, Vec<Connection>) {
    let feeders = vec![
        feeder("board-a", None, 5_000, 100),
        feeder("board-b", None, 5_000, 0),
        feeder("pdu-a", Some("board-a"), 4_000, 50),
        feeder("pdu-b", Some("board-b"), 4_000, 0),
    ];
    let both = ["pdu-a", "pdu-b"];
    (feeders, vec![on(0, &both, 1), on(1, &["pdu-a"], 1), on(2, &both, 2)])
}

#[test]
fn a_lost_feeder_moves_the_load_of_its_nodes() {
    let (feeders, connections) = two_sides();
    let tree = FeederTree::new(feeders, connections).unwrap();
    let shares = |limit: &FeederLimit| {
        [0, 1, 2].map(|at| limit.shares.get(&node(at)).copied().unwrap_or(0.0))
    };
    let limits = tree.limits();
    let of = |name: &str| -> Vec<(Option<String>, u64, [f64; 3])> {
        let own = limits.iter().filter(|limit| limit.feeder == id(name));
        let lost = |limit: &FeederLimit| limit.lost.as_ref().map(ToString::to_string);
        own.map(|limit| (lost(limit), limit.static_load.as_mw() / 1_000, shares(limit))).collect()
    };
    // With a PDU lost, n0 draws all from the other, and n2, which needs both, draws nothing.
    let lost = Some("board-b".to_owned());
    assert_eq!(of("pdu-a"), [(None, 50, [0.5, 1.0, 0.5]), (lost.clone(), 50, [1.0, 1.0, 0.0])]);
    assert_eq!(of("board-a"), [(None, 150, [0.5, 1.0, 0.5]), (lost, 150, [1.0, 1.0, 0.0])]);
    let lost = Some("board-a".to_owned());
    assert_eq!(of("pdu-b"), [(None, 0, [0.5, 0.0, 0.5]), (lost, 0, [1.0, 0.0, 0.0])]);
    assert_eq!(tree.in_order(), [(0, 0), (2, 1), (1, 0), (3, 1)]);
    let read = |at: &NodeId| -> Total<Power> {
        [(*at != node(1)).then(|| Power::from_w(1_000))].into_iter().collect()
    };
    let measured: Vec<(u64, bool)> = tree
        .measured(read)
        .iter()
        .map(|sum| (sum.known().unwrap_or_default().as_mw() / 1_000, sum.is_complete()))
        .collect();
    assert_eq!(measured, [(1_150, false), (1_000, true), (1_050, false), (1_000, true)]);
}

#[test]
fn a_wrong_tree_is_refused_with_its_place_and_the_remedy() {
    let refused = |change: &dyn Fn(&mut Vec<Feeder>, &mut Vec<Connection>)| {
        let (mut feeders, mut connections) = two_sides();
        change(&mut feeders, &mut connections);
        let error = FeederTree::new(feeders, connections).unwrap_err();
        (error.place, error.problem)
    };
    let is = |place: Place, words: &str, found: (Place, String)| {
        assert!(found.0 == place && found.1.contains(words), "{found:?}");
    };
    let (at, of) = (Place::Feeder, Place::Connection);
    is(at(2), "unknown; correct it", refused(&|f, _| f[2].parent = Some(id("board-c"))));
    is(at(3), "two feeders have the name pdu-a", refused(&|f, _| f[3].name = id("pdu-a")));
    is(at(0), "board-a, pdu-a form a cycle", refused(&|f, _| f[0].parent = Some(id("pdu-a"))));
    is(at(1), "of board-b form a cycle", refused(&|f, _| f[1].parent = Some(id("board-b"))));
    let low =
        "the limit of feeder board-a, 149 W, is below the static load on it: give at least 150 W";
    is(at(0), low, refused(&|f, _| f[0].limit_mw = Power::from_w(149)));
    is(of(1), "node n1 is on no feeder", refused(&|_, c| c[1].feeds.clear()));
    is(of(1), "unknown feeder pdu-c", refused(&|_, c| c[1].feeds = vec![id("pdu-c")]));
    is(of(0), "pdu-a twice", refused(&|_, c| c[0].feeds[1] = id("pdu-a")));
    is(of(0), "min_feeds = 3 of node n0: give 1 to 2", refused(&|_, c| c[0].min_feeds = 3));
    is(of(0), "min_feeds = 0", refused(&|_, c| c[0].min_feeds = 0));
    is(of(2), "n0 is in two tables", refused(&|_, c| c[2].nodes = [node(0)].into()));
    is(of(2), "names no node", refused(&|_, c| c[2].nodes.clear()));
}

#[test]
fn a_limit_below_the_idle_draw_is_refused_with_the_least_one() {
    let (mut feeders, connections) = two_sides();
    feeders[2].limit_mw = Power::from_w(1_000);
    let tree = FeederTree::new(feeders, connections).unwrap();
    let idle = |w: u64| move |_: &NodeId| Some(Power::from_w(w));
    assert_eq!(tree.check_idle(idle(475)), Ok(()));
    let error = tree.check_idle(idle(500)).unwrap_err();
    assert_eq!(error.place, Place::Feeder(2));
    assert_eq!(
        error.problem,
        "the limit of feeder pdu-a, 1000 W, is below what its nodes draw without jobs: give at least 1050 W"
    );
    // A limit below the static load alone has the same least one.
    let (mut feeders, connections) = two_sides();
    feeders[2].limit_mw = Power::from_w(49);
    let error = FeederTree::with_idle(feeders, connections, idle(500)).unwrap_err().problem;
    assert!(error.ends_with("without jobs: give at least 1050 W"), "{error}");
    let only_both = |at: &NodeId| (*at == node(0)).then(|| Power::from_w(1_000));
    let error = tree.check_idle(only_both).unwrap_err().problem;
    assert!(error.contains("if board-b is lost: give at least 1050 W"), "{error}");
}

/// The draw of each feeder, by a walk from each node up to the supplies of the site.
fn walked(
    feeders: &[(Option<usize>, u64)],
    nodes: &[(Vec<usize>, usize, u64)],
    lost: Option<usize>,
) -> Vec<f64> {
    let above = |from: usize| std::iter::successors(Some(from), |at| feeders[*at].0);
    let is_dead = |at: usize| above(at).any(|feeder| Some(feeder) == lost);
    let mut drawn = vec![0.0; feeders.len()];
    for (at, (_, load_w)) in feeders.iter().enumerate().filter(|(at, _)| !is_dead(*at)) {
        above(at).for_each(|feeder| drawn[feeder] += *load_w as f64);
    }
    for (feeds, least, node_w) in nodes {
        let left: Vec<usize> = feeds.iter().copied().filter(|feed| !is_dead(*feed)).collect();
        if left.len() < *least {
            continue;
        }
        for feed in &left {
            above(*feed).for_each(|feeder| drawn[feeder] += *node_w as f64 / left.len() as f64);
        }
    }
    drawn
}

proptest! {
    /// The limits that are left hold exactly where every feeder's limit holds, whole and with each feeder lost.
    #[test]
    fn no_limit_is_left_out(
        parents in prop::collection::vec((prop::option::of(0usize..8), 0u64..3, 1u64..40), 1..9),
        nodes in prop::collection::vec((prop::collection::btree_set(0usize..8, 1..4), 1usize..4, 0u64..20), 1..6),
    ) {
        let count = parents.len();
        let shape: Vec<(Option<usize>, u64)> = parents.iter().enumerate()
            .map(|(at, (parent, load_w, _))| (parent.filter(|parent| *parent < at), *load_w))
            .collect();
        let nodes: Vec<(Vec<usize>, usize, u64)> = nodes.into_iter().map(|(feeds, least, node_w)| {
            let feeds: BTreeSet<usize> = feeds.into_iter().map(|feed| feed % count).collect();
            let least = least.min(feeds.len());
            (feeds.into_iter().collect(), least, node_w)
        }).collect();
        let name = |at: usize| format!("f{at}");
        let limit_w = |at: usize| parents[at].2 + walked(&shape, &[], None)[at] as u64;
        let feeders = shape.iter().enumerate().map(|(at, (parent, load_w))| {
            feeder(&name(at), parent.map(name).as_deref(), limit_w(at), *load_w)
        }).collect();
        let connections = nodes.iter().enumerate().map(|(at, (feeds, least, _))| Connection {
            nodes: [node(at)].into(),
            feeds: feeds.iter().map(|feed| id(&name(*feed))).collect(),
            min_feeds: *least as u32,
        }).collect();
        let tree = FeederTree::new(feeders, connections).unwrap();
        let node_w = |of: &NodeId| {
            nodes.iter().enumerate().find(|(at, _)| node(*at) == *of).map_or(0.0, |(_, n)| n.2 as f64)
        };
        let holds = |limit: &FeederLimit| limit.power_w(node_w) <= limit.limit.as_w() + 1e-9;
        let by_limits = tree.limits().iter().all(holds);
        let mut by_walks = true;
        for lost in (0..count).map(Some).chain([None]) {
            let drawn = walked(&shape, &nodes, lost);
            by_walks &= drawn.iter().enumerate().all(|(at, drawn)| *drawn <= limit_w(at) as f64 + 1e-9);
            if lost.is_none() {
                for (at, drawn) in drawn.iter().enumerate() {
                    let whole = tree.whole(at).map_or(walked(&shape, &[], None)[at], |w| w.power_w(node_w));
                    prop_assert!((whole - drawn).abs() < 1e-9);
                }
            }
        }
        prop_assert_eq!(by_limits, by_walks);
    }
}

#[test]
fn an_event_may_name_a_feeder_that_carries_nodes() {
    let (mut feeders, connections) = two_sides();
    feeders.push(feeder("board-c", None, 5_000, 0));
    let tree = FeederTree::new(feeders, connections).unwrap();
    let refused =
        |tree: &FeederTree, name: &str| tree.check_event(&id(name)).unwrap_err().to_string();
    for name in ["board-a", "pdu-b"] {
        assert!(tree.check_event(&id(name)).is_ok(), "{name}");
    }
    expect_test::expect![[r#"
        feeder = pdu-x: expected one of board-a, pdu-a, board-b, pdu-b, board-c
        feeder = board-c: expected a feeder with nodes on it or below it
        feeder = pdu-a: expected no feeder, so that the event limits the whole site, or tables [[feeder]] and [[node]] in the placer's configuration, because this site has none"#]]
    .assert_eq(
        &[
            refused(&tree, "pdu-x"),
            refused(&tree, "board-c"),
            refused(&FeederTree::default(), "pdu-a"),
        ]
        .join("\n"),
    );
    // Of many feeders the first are named.
    let many = (0..25).map(|at| feeder(&format!("f{at}"), None, 5_000, 0)).collect();
    let many = FeederTree::new(many, vec![on(0, &["f0"], 1)]).unwrap();
    let text = refused(&many, "no");
    assert!(text.contains("f18, f19 and 5 more") && !text.contains("f20"), "{text}");
    let wholes: Vec<Option<FeederLimit>> = tree.wholes();
    let each: Vec<Option<FeederLimit>> = (0..5).map(|at| tree.whole(at)).collect();
    assert_eq!(wholes, each);
}
