//! The fuzz targets.

mod config;
pub mod machines;
mod messages;
mod openadr;
mod texts;

use crate::Target;

/// Every target.
pub const ALL: [Target; 10] = [
    Target {
        name: "codec",
        about: "binary telemetry",
        run: texts::codec,
        words: &["\u{0}\u{0}", "n0", "train-7"],
    },
    Target {
        name: "subjects",
        about: "subjects, keys of buckets and ids",
        run: texts::subjects,
        words: texts::SUBJECT_WORDS,
    },
    Target {
        name: "messages",
        about: "JSON of every message, and the limits of its numbers",
        run: messages::run,
        words: &["train-7", "n0", "null", "{}", "[]", "true"],
    },
    Target {
        name: "machines",
        about: "messages and stored values in the state machines of all services",
        run: machines::run,
        words: &["train-7", "n0", "v100", "physical", "resnet50", "null"],
    },
    Target {
        name: "traces",
        about: "traces of every format",
        run: texts::traces,
        words: &[",", "\n", "\"", ";", "\t", "2017-10-03 01:23:45", "resnet50", "Pass"],
    },
    Target {
        name: "sacct",
        about: "Slurm's accounting file",
        run: texts::sacct,
        words: &[
            "|",
            "\n",
            "gres/gpu=",
            "gres/gpu:a100=",
            "UNLIMITED",
            "Unknown",
            "CANCELLED by 7",
            "RUNNING",
            "REQUEUED",
            "NODE_FAIL",
            "1-00:00:00",
            "gpu[01-99]",
            "2024-05-06T08:10:51",
        ],
    },
    Target {
        name: "config",
        about: "configuration files of every service",
        run: config::run,
        words: &["=", "\n", "[", "]", "\"", "nats", "url", "true", "inf", "nan"],
    },
    Target {
        name: "progress",
        about: "progress lines of jobs",
        run: texts::progress,
        words: &[
            "job=",
            "step=",
            "epoch=",
            "steps_total=",
            "steps_per_epoch=",
            "global_batch=",
            " ",
        ],
    },
    Target {
        name: "openadr",
        about: "programs and events of an OpenADR server, and what is requested for them",
        run: openadr::run,
        words: &[
            "\"0001-01-01\"",
            "\"P9999Y\"",
            "\"PT1H\"",
            "\"SIMPLE\"",
            "\"ALERT_GRID_EMERGENCY\"",
            "\"USAGE\"",
            "null",
            "-1",
        ],
    },
    Target {
        name: "submission",
        about: "the web page's form of a job, and its command line",
        run: texts::submission,
        words: &[
            "'", "\"", "\\", "\\n", "$", "|", "python3", "--gpus", "A=1", "1..4", "USR1", "90m",
        ],
    },
];
