//! Parallel runs. Results do not depend on the number of threads or on scheduling.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Applies `work` to every task on up to `threads` threads and returns the results in the order of
/// the tasks. No task starts after the first error. `done` receives the number of finished tasks
/// whenever one finishes.
///
/// # Errors
/// The error of the first failed task, in order.
pub fn in_parallel<T: Sync, R: Send, E: Send>(
    tasks: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let threads = threads.clamp(1, tasks.len().max(1));
    let mut results: Vec<Option<Result<R, E>>> = Vec::new();
    results.resize_with(tasks.len(), || None);
    std::thread::scope(|scope| {
        let (sender, received) = mpsc::sync_channel(threads);
        for _ in 0..threads {
            let (sender, next, failed, work) = (sender.clone(), &next, &failed, &work);
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(at) else { break };
                    let result = work(task);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    if sender.send((at, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (count, (at, result)) in received.iter().enumerate() {
            results[at] = Some(result);
            done(count + 1);
        }
    });
    // A task that was not started follows a failed one.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_tasks() {
        let tasks: Vec<u64> = (0..100).collect();
        for threads in [1, 2, 7, 1_000] {
            let mut received = Vec::new();
            let squares =
                in_parallel(&tasks, threads, |n| Ok::<_, ()>(n * n), &mut |n| received.push(n));
            assert_eq!(squares.unwrap(), tasks.iter().map(|n| n * n).collect::<Vec<_>>());
            assert_eq!(received, (1..=100).collect::<Vec<_>>());
        }
        let none: Vec<u64> = Vec::new();
        assert_eq!(in_parallel(&none, 2, |n| Ok::<_, ()>(*n), &mut |_| ()), Ok(Vec::new()));
    }

    #[test]
    fn an_error_ends_it() {
        let tasks: Vec<u64> = (0..1_000).collect();
        let work = |n: &u64| if *n == 3 { Err(*n) } else { Ok(*n) };
        let mut begun = 0;
        assert_eq!(in_parallel(&tasks, 1, work, &mut |_| begun += 1), Err(3));
        assert_eq!(begun, 4);
        assert_eq!(in_parallel(&tasks, 2, work, &mut |_| ()), Err(3));
    }
}
