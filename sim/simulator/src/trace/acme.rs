//! The traces of Shanghai AI Lab's Acme clusters, `trace_seren.csv` and `trace_kalos.csv`
//! (github.com/InternLM/AcmeTrace; Hu et al., NSDI'24). Times have an offset.
//!
//! The columns are those of Helios ([`super::helios`]) without `vc`, with `type` and `gpu_time`. In Kalos the
//! column `duration` also contains the time in the queue, so the run is from `start_time` to `end_time`.

use super::format::Format;
use super::helios;

pub(super) static FORMAT: Format = Format {
    name: "Acme",
    key: "acme",
    required: &[
        "job_id",
        "user",
        "gpu_num",
        "cpu_num",
        "node_num",
        "state",
        "submit_time",
        "start_time",
        "end_time",
    ],
    one_of: &[&["type", "gpu_time"]],
    optional: &[
        "duration",
        "queue",
        "mem_per_pod_GB",
        "shared_mem_per_pod",
        "fail_time",
        "stop_time",
    ],
    ..helios::FORMAT
};
