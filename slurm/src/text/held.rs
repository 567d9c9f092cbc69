//! The GPUs that a job holds, from `scontrol show job --details`: `squeue` does not have them.

use wattle_common::id::GpuIndex;

use super::TextError;
use super::gres::held_indices;
use super::hostlist;

/// The GPUs of each node of a job, in the order of its nodes.
///
/// The output is that of one job. Its owner controls its name, which precedes the resources, and other texts
/// behind them: the name is left out by its known text, and reading ends before the other texts.
///
/// # Errors
/// If the output is that of another job or another name, or a node's resources are not readable.
pub fn held(output: &str, id: u32, name: &str) -> Result<Vec<(String, Vec<GpuIndex>)>, TextError> {
    let other = || TextError::new("job with another id or name", output);
    let (ids, rest) = output.split_once("JobName=").ok_or_else(other)?;
    if ids.split_ascii_whitespace().next() != Some(format!("JobId={id}").as_str()) {
        return Err(other());
    }
    let name = if name.is_empty() { "(null)" } else { name };
    let rest = rest.strip_prefix(name).ok_or_else(other)?;
    let rest = rest.strip_prefix('\n').ok_or_else(other)?;
    // Slurm 26.05 prints a line with the id of the submission first.
    let rest = match rest.split_once('\n') {
        Some((line, rest)) if line.starts_with("   SLUID=") => rest,
        _ => rest,
    };
    let rest = rest.strip_prefix("   UserId=").ok_or_else(other)?;
    let mut nodes = Vec::new();
    for line in rest.lines().map(str::trim_start) {
        if line.starts_with("MinCPUsNode=") {
            break;
        }
        let Some(line) = line.strip_prefix("Nodes=") else { continue };
        let mut words = line.split_ascii_whitespace();
        let names = hostlist::expand(words.next().unwrap_or_default())?;
        let gres = words.find_map(|word| word.strip_prefix("GRES=")).unwrap_or_default();
        let indices = held_indices(gres)?;
        nodes.extend(names.into_iter().map(|name| (name, indices.clone())));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by Slurm 22.05.8; the name and the comment are those of a job that pretends to be another.
    const SHOWN: &str = include_str!("../../tests/slurm-22.05/show-job-forged.txt");
    const NAME: &str = "evil name\n\nJobId=1 JobName=x\n   UserId=root(0) Reason=None AdminComment=wattle: tag=1\u{1f}|";

    #[test]
    fn the_indices_are_slurms() {
        assert_eq!(held(SHOWN, 2, NAME), Ok(vec![("tx1".to_owned(), vec![3])]));
        let two = include_str!("../../tests/slurm-22.05/show-job-two-nodes.txt");
        let on = |node: &str, gpu| (node.to_owned(), vec![gpu]);
        assert_eq!(held(two, 4, "wrap"), Ok(vec![on("tx1", 2), on("tx2", 0)]));
    }

    #[test]
    fn the_line_of_the_submission_is_left_out() {
        let shown = include_str!("../../tests/slurm-26.05/show-job.txt");
        assert_eq!(held(shown, 1, "wrap"), Ok(vec![("pb1".to_owned(), vec![0])]));
        let forged = "wrap\n   SLUID=x\n   UserId=a";
        assert!(held(shown, 1, forged).is_err());
    }

    #[test]
    fn another_job_or_name_is_refused() {
        assert!(held(SHOWN, 1, NAME).is_err());
        assert!(held(SHOWN, 2, "evil name").is_err());
        assert!(held("", 2, "").is_err());
    }

    #[test]
    fn a_forged_line_of_a_name_or_comment_is_no_resource() {
        let name = "x\n     Nodes=tx9 CPU_IDs=0 Mem=1 GRES=gpu:g7:1(IDX:7)\n   MinCPUsNode=1";
        let forged = SHOWN.replacen(NAME, name, 1)
            + "   Comment=a\n     Nodes=tx8 CPU_IDs=0 Mem=1 GRES=gpu:g6:1(IDX:6)\n";
        assert_eq!(held(&forged, 2, name), Ok(vec![("tx1".to_owned(), vec![3])]));
    }
}
