//! Outputs of other programs, and other tables of known traces: they are no traces of jobs, and are refused by
//! their own name.

/// What a text looks like, and what to give in its place.
type Named = (&'static str, &'static str);

const SACCT: &str = "export the jobs with sacct (docs/simulate.md)";
const CONVERT: &str = "convert it to a table job_id,submit_s,duration_s,num_gpus";

/// What the text looks like by its first lines; `None` where it is no known output.
pub(super) fn recognise(bytes: &[u8]) -> Option<Named> {
    /// Bytes that are examined.
    const START: usize = 4_096;
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(START)]);
    let lines: Vec<&str> = start.lines().map(str::trim).filter(|l| !l.is_empty()).take(6).collect();
    let first = *lines.first()?;
    let begins = |prefix: &str| first.starts_with(prefix);
    let words: Vec<&str> = first.split([' ', '\t', '|', ',']).filter(|w| !w.is_empty()).collect();
    let has = |all: &[&str]| all.iter().all(|word| words.iter().any(|own| own == word));
    let any = |text: &str| lines.iter().any(|line| line.contains(text));
    let is_sreport = any("Usage reported in")
        || any(" Utilization 2")
        || any("Top 10 Users")
        || any("Job Sizes")
        || has(&["Cluster", "Account", "Login", "Used"])
        || has(&["Cluster", "Allocated", "Idle"]);
    Some(if is_sreport {
        ("the output of sreport", SACCT)
    } else if has(&["JOBID", "PRIORITY"]) {
        ("the output of sprio, which has only jobs in the queue", SACCT)
    } else if has(&["RawShares"]) || has(&["RawUsage"]) {
        ("the output of sshare", SACCT)
    } else if has(&["GrpTRES"]) || has(&["GraceTime"]) || has(&["ControlHost"]) {
        ("the output of sacctmgr", SACCT)
    } else if any("sdiag output at") {
        ("the output of sdiag", SACCT)
    } else if has(&["JOBID", "PARTITION"]) || has(&["JOBID", "ST"]) {
        ("the output of squeue, which has only the jobs of this moment", SACCT)
    } else if has(&["PARTITION", "AVAIL"]) || has(&["NODELIST", "STATE"]) {
        ("the output of sinfo", SACCT)
    } else if begins("JobId=") {
        ("the output of scontrol show job, which has only the jobs of this moment", SACCT)
    } else if begins("NodeName=") || begins("PartitionName=") {
        ("the output of scontrol, or a configuration of Slurm", SACCT)
    } else if begins("Job ID:") && any("Cluster:") {
        ("the output of seff", SACCT)
    } else if any("NVIDIA-SMI") || any("utilization.gpu") || any("power.draw") {
        ("the output of nvidia-smi, which has no jobs", SACCT)
    } else if begins(";") && (any("Version:") || any("MaxJobs:") || any("UnixStartTime:")) {
        ("the Standard Workload Format, which has no GPUs", CONVERT)
    } else if is_pbs(first) {
        ("an accounting log of PBS", CONVERT)
    } else if has(&["Job", "id", "Name", "User"]) || has(&["job-ID", "prior"]) {
        ("the output of qstat", CONVERT)
    } else if any("qname") && begins("====") {
        ("the output of qacct", CONVERT)
    } else if has(&["JOBID", "QUEUE"]) || begins("\"JOB_FINISH\"") {
        ("the output or the log of LSF", CONVERT)
    } else if has(&["NAME", "READY", "STATUS"]) || begins("apiVersion:") {
        ("the output of kubectl", CONVERT)
    } else if begins("<!DOCTYPE") || begins("<!doctype") || begins("<html") {
        ("a page in HTML", "name the file itself; the address may need a sign-in")
    } else if has(&["time", "gpu0_util"])
        || has(&["time", "cpu_util"])
        || has(&["mem_total"])
        || has(&["machineId"])
    {
        ("Philly's list or readings of its machines", "name its cluster_job_log")
    } else if has(&["sn", "cpu_milli", "gpu"]) {
        ("the nodes of Alibaba's trace of 2023", "name an openb_pod_list_*.csv")
    } else if has(&["job_name", "inst_id"])
        || has(&["worker_name", "inst_id"])
        || has(&["cap_gpu"])
        || has(&["group", "workload"])
    {
        ("another table of Alibaba's trace of 2020", "name its pai_task_table.csv")
    } else if has(&["date", "total"]) && words.iter().any(|word| word.starts_with("vc")) {
        ("the GPU counts of Helios", "name its cluster_log.csv")
    } else if has(&["at_s", "g_per_kwh"]) || has(&["at", "g_per_kwh"]) {
        ("a series of carbon intensity", "give it with --carbon")
    } else {
        return None;
    })
}

/// What a text in JSON looks like. `has` states whether its first object has a field.
pub(super) fn recognise_json(bytes: &[u8], has: impl Fn(&str) -> bool) -> Named {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4_096)]);
    let names = |key: &str| start.contains(key);
    if has("job_state") {
        let what = "the output of squeue --json or scontrol --json, which has only the jobs of this moment";
        (what, "export with sacct --json, or as a table (docs/simulate.md)")
    } else if names("\"sinfo\"") || names("\"nodes\"") || names("\"partitions\"") {
        ("the output of sinfo --json or scontrol --json, which has no jobs", SACCT)
    } else if names("\"jobs\"") {
        ("JSON with a list `jobs` without the fields of sacct --json", SACCT)
    } else if names("\"kind\"") && names("\"apiVersion\"") {
        ("the output of kubectl", CONVERT)
    } else {
        ("JSON without a list of jobs", "give the output of sacct --json, or a table")
    }
}

/// `05/06/2024 10:00:00;E;17.server;...`.
fn is_pbs(line: &str) -> bool {
    let mut parts = line.split(';');
    let date = parts.next().unwrap_or_default();
    let kind = parts.next().unwrap_or_default();
    date.len() == 19 && date.as_bytes()[2] == b'/' && kind.len() == 1 && parts.next().is_some()
}
