//! The sizes on which jobs that cannot stop start, and which they keep.

use super::*;

/// The size of a job alone on 16 GPUs, whose speed is the square root of their number.
fn alone(can_stop: bool, deadline_s: Option<u64>) -> u32 {
    let mut site = cluster(&[8, 8]);
    let deadline = deadline_s.map(Timestamp::from_s);
    let job = JobFacts { can_stop, deadline, ..facts("j", 1, 64) };
    let job = arrive(&mut site, job, ROOT, Some(9_000));
    converge(&mut site);
    gpus(&site, job)
}

#[test]
fn a_job_that_cannot_stop_starts_on_the_size_that_is_cheap_at_the_price_of_later() {
    assert_eq!(alone(true, None), 16);
    // (1 + 0.4 n) / sqrt(n) is 1.27 on two GPUs, 1.3 on four and 1.4 on one.
    assert_eq!(alone(false, None), 2);
    // 9,000 s on one GPU are 3,182 s on eight.
    let in_time = alone(false, Some(4_000));
    assert!((8..=16).contains(&in_time), "{in_time}");
}
