"""Steps, reports and checkpoints of a Job; a missing or slow profiler never disturbs it."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from support import DEADLINE_S, FOLDER, InJob, environment, until

import wattle_job
from wattle_job import progress
from wattle_job.size import Size


class Uncomparable:
    """As an array: comparing it raises."""

    def __ne__(self, other):
        raise ValueError("ambiguous")


class Reports(InJob):
    def test_lines_follow_the_contract(self):
        with wattle_job.Job(steps_total=90, steps_per_epoch=30, global_batch=256, report_every_s=0) as job:
            self.assertFalse(job.step(1))
            self.assertEqual(self.profiler.next(), {
                "job": "train-7", "step": 1, "steps_per_epoch": 30, "steps_total": 90, "global_batch": 256})
            job.step(31, epoch=1)
            self.assertEqual(self.profiler.next()["epoch"], 1)
            job.step()
            self.assertEqual(self.profiler.next()["step"], 32)
        self.assertEqual((job.attempt, job.reports_lost), (2, 0))

    def test_reports_are_limited_in_rate_except_at_the_end(self):
        with wattle_job.Job(report_every_s=1000, first_step=500) as job:
            for _ in range(10_000):
                job.step()
            self.assertEqual([line["step"] for line in self.profiler.lines()], [501])
        self.assertEqual([line["step"] for line in self.profiler.lines()], [10_500])
        # The end of an epoch is reported early, but not more often than every 50 ms.
        with wattle_job.Job(report_every_s=1000) as job:
            job.step(1, epoch=0)
            job._epoch_due = 0.0
            job.step(2, epoch=0)
            job.step(3, epoch=1)
            for step in range(4, 2_000):
                job.step(step, epoch=step)
            self.assertLess(job.reports_sent, 60)
        self.assertEqual([line["step"] for line in self.profiler.lines()][:2], [1, 3])

    def test_only_rank_0_reports_and_every_rank_gets_requests(self):
        os.environ["RANK"] = "1"
        with wattle_job.Job(report_every_s=0) as job:
            job.step(4)
            self.assertEqual(self.profiler.lines(), [])
            os.kill(os.getpid(), signal.SIGUSR1)
            self.assertTrue(job.step(5))

    def test_values_outside_of_the_contract_are_neither_sent_nor_raised(self):
        job = wattle_job.Job(report_every_s=0)
        with self.assertLogs("wattle_job", "WARNING") as logs:
            for step in (-1, 1 << 60, "many", object(), float("nan"), float("inf"), None):
                job.step(step)
                job.completed = 3
            job.step(4, epoch=Uncomparable())
            job.epoch = None
            job.global_batch = "a few"
            job.step(8)
            job.global_batch = None
        self.assertEqual(len(logs.records), 1, "one warning, not one per step")
        # Every accepted line was checked.
        self.profiler.lines()
        job.step(9)
        self.assertEqual(self.profiler.next()["step"], 9)
        job.close()
        os.environ["WATTLE_JOB"] = "a b=c"
        with self.assertLogs("wattle_job", "WARNING"):
            job = wattle_job.Job(report_every_s=0)
        job.step(1)
        job.close()
        self.assertEqual(self.profiler.lines(), [])

    def test_the_longest_line_is_short_enough(self):
        line = progress.line("j" * 64, 1 << 53, (1 << 32) - 1, 1 << 53, 1 << 53, (1 << 32) - 1)
        self.assertLess(len(line), progress.LINE_LEN_MAX)
        for wrong in ({"job": "a b", "step": 1}, {"job": "", "step": 1}, {"job": "a", "step": None}):
            with self.assertRaises(ValueError):
                progress.line(**wrong)

    def test_a_full_buffer_neither_blocks_nor_raises(self):
        job = wattle_job.Job(report_every_s=0)
        began = time.monotonic()
        until("the buffer is full", lambda: job.step() or job.reports_lost > 100)
        self.assertLess(time.monotonic() - began, DEADLINE_S)
        self.assertGreater(job.reports_sent, 0)
        self.assertGreater(len(self.profiler.lines()), 0)
        sent = job.reports_sent
        job.step()
        self.assertEqual(job.reports_sent, sent + 1, "the drained buffer accepts lines again")
        job.close()

    def test_a_socket_that_vanishes_and_returns(self):
        job = wattle_job.Job(report_every_s=0)
        job.step(1)
        self.assertEqual(self.profiler.next()["step"], 1)
        self.profiler.close()
        job.step(2)  # the file is there, its process is not
        os.unlink(self.socket_path)
        job.step(3)
        self.assertEqual(job.reports_lost, 2)
        self.profiler.__init__(self.socket_path)
        job.step(4)
        self.assertEqual(self.profiler.next()["step"], 4)
        job.close()

    def test_impossible_sockets(self):
        for path in ("/" + 200 * "x", "/proc/none", self.folder.name, "a\0b", ""):
            if "\0" not in path:
                os.environ["WATTLE_PROGRESS"] = path
            job = wattle_job.Job(report_every_s=0)
            if "\0" in path:
                job._socket = path
            job.step(1)
            self.assertEqual(job.reports_sent, 0, path)
            job.close()

    def test_no_file_descriptors_left(self):
        job = wattle_job.Job(report_every_s=0)
        before = len(os.listdir("/proc/self/fd"))
        import resource
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            job.step(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual((job.reports_sent, job.reports_lost), (0, 1))
        job.step(2)
        self.assertEqual(job.reports_sent, 1)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        job.close()

    def test_a_forked_process(self):
        job = wattle_job.Job(report_every_s=0)
        job.step(1)
        child = os.fork()
        if child == 0:
            job.step(2)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        job.step(3)
        self.assertEqual([line["step"] for line in self.profiler.lines()], [1, 2, 3])
        job.close()

    def test_threads(self):
        job = wattle_job.Job(report_every_s=0.0001)
        errors = []

        def steps():
            try:
                for step in range(2_000):
                    job.step(step)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=steps) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        self.assertEqual(errors, [])
        self.profiler.lines()
        job.close()


class Checkpoints(InJob):
    def test_each_signal_is_seen_at_the_next_step_and_handlers_are_set_again(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            before = signal.getsignal(number)
            with wattle_job.Job(exit_code=85) as job:
                self.assertFalse(job.step())
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)  # the launcher may send it twice
                self.assertTrue(job.step())
                self.assertTrue(job.checkpoint_requested)
                with self.assertRaises(SystemExit) as end:
                    job.exit_if_requested()
            self.assertEqual(end.exception.code, 85)
            self.assertEqual(signal.getsignal(number), before)

    def test_a_handler_of_the_program_is_still_called(self):
        seen = []
        before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with wattle_job.Job() as job:
            os.kill(os.getpid(), signal.SIGUSR1)
            self.assertTrue(job.step())
        self.assertEqual(seen, [signal.SIGUSR1])

    def test_a_job_made_in_another_thread(self):
        made = []
        with self.assertLogs("wattle_job", "WARNING") as logs:
            thread = threading.Thread(target=lambda: made.append(wattle_job.Job(report_every_s=0)))
            thread.start()
            thread.join(DEADLINE_S)
        self.assertIn("main thread", logs.output[0])
        job = made[0]
        job.step(1)
        self.assertEqual(self.profiler.next()["step"], 1)
        self.assertTrue(job.listen())
        os.kill(os.getpid(), signal.SIGUSR1)
        self.assertTrue(job.step(2))
        job.close()

    def test_unknown_signals(self):
        with self.assertLogs("wattle_job", "WARNING"):
            job = wattle_job.Job(signals=("USR1", "NONE"))
        job.close()

    def test_a_file_is_complete_or_as_before(self):
        with wattle_job.Job() as job:
            with job.writing("last") as path:
                with open(path, "w") as file:
                    file.write("first")
            with self.assertRaises(KeyError):
                with job.writing("last") as path:
                    with open(path, "w") as file:
                        file.write("sec")
                    raise KeyError
            with self.assertRaises(OSError):
                with job.writing("last"):
                    pass  # nothing was written
            with open(job.path("last")) as file:
                self.assertEqual(file.read(), "first")
            self.assertEqual(os.listdir(self.checkpoints), ["last"])

    def test_a_folder_is_replaced_and_its_predecessor_removed(self):
        from wattle_job import checkpoint

        with wattle_job.Job() as job:
            for text in ("first", "second"):
                part = job.path("last.part")
                os.makedirs(os.path.join(part, "shard"))
                with open(os.path.join(part, "shard", "0"), "w") as file:
                    file.write(text)
                checkpoint.replace(part, job.path("last"))
            with open(os.path.join(job.path("last"), "shard", "0")) as file:
                self.assertEqual(file.read(), "second")
            self.assertEqual(os.listdir(self.checkpoints), ["last"])

    def test_a_failed_checkpoint_leaves_the_file_and_is_requested_again(self):
        def fails(path):
            with open(path, "w") as file:
                file.write("half")
            raise OSError(errno.ENOSPC, "No space left on device")

        with wattle_job.Job() as job:
            self.assertTrue(job.write("last", lambda path: open(path, "w").close()))
            os.kill(os.getpid(), signal.SIGUSR1)
            self.assertTrue(job.step(1))
            with self.assertLogs("wattle_job", "WARNING") as logs:
                self.assertFalse(job.write("last", fails))
            self.assertIn("No space left", logs.output[0])
            self.assertEqual(os.path.getsize(job.path("last")), 0)
            self.assertEqual(os.listdir(self.checkpoints), ["last"])
            self.assertFalse(job.step(2), "not at once")
            job._retry_at = 0.0
            self.assertTrue(job.step(3))

    def test_a_folder_that_cannot_be_written(self):
        with wattle_job.Job() as job:
            for folder in ("/proc/none", os.path.join(self.socket_path, "below")):
                job.checkpoint_dir = folder
                with self.assertLogs("wattle_job", "WARNING"):
                    self.assertFalse(job.write("last", lambda path: open(path, "w").close()))
                job.step(1)

    def test_a_full_disk(self):
        with wattle_job.Job() as job, open("/dev/full", "wb", buffering=0) as full:
            with self.assertLogs("wattle_job", "WARNING"):
                self.assertFalse(job.write("last", lambda path: full.write(b"state")))
            self.assertEqual(os.listdir(self.checkpoints), [])

    def test_several_processes_try_again_after_the_same_step(self):
        jobs = [wattle_job.Job(agree=lambda values: [1.0, 0.5]) for _ in range(2)]
        again = []
        for job in jobs:
            self.assertTrue(job.step())
            with self.assertLogs("wattle_job", "WARNING"):
                job.not_written("rank 0 has failed")
            again.append([job.step() for _ in range(60)].index(True))
            job.close()
        self.assertEqual(again, [19, 19], "ten seconds of steps of 0.5 s")

    def test_a_forked_process_ends_on_term(self):
        with wattle_job.Job() as job:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(3)
            self.assertEqual(os.waitpid(child, 0)[1], signal.SIGTERM, "as one without a Job")
            self.assertFalse(job.step())
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertTrue(job.step(), "the parent has its handler")

    def test_several_processes_agree(self):
        calls = []

        def agree(values):
            calls.append(values)
            return [max(values[0], float(len(calls) == 3)), max(values[1], 0.25)]

        job = wattle_job.Job(agree=agree)
        answers = [job.step() for _ in range(12)]
        # After a step time of 0.25 s, every fourth step; the third agreement has another process's request.
        self.assertEqual((answers.index(True), len(calls)), (8, 3))
        self.assertTrue(all(answers[8:]))
        job.close()
        job = wattle_job.Job(agree=lambda values: values)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.assertFalse(job.checkpoint_requested, "only after an agreement")
        self.assertTrue(job.step())
        job.close()

    def test_a_failed_agreement_does_not_end_the_training(self):
        def fails(values):
            raise RuntimeError("no connection")

        with wattle_job.Job(agree=fails) as job:
            with self.assertLogs("wattle_job", "WARNING") as logs:
                os.kill(os.getpid(), signal.SIGUSR1)
                self.assertFalse(any(job.step() for _ in range(50)))
        self.assertEqual(len(logs.records), 1)


class Outside(unittest.TestCase):
    def test_nothing_happens_without_a_job(self):
        with environment():
            handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]
            with wattle_job.Job(steps_total=3) as job:
                self.assertFalse(job.step())
                self.assertFalse(job.report())
                self.assertEqual(handlers, [signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGTERM)])
                self.assertEqual((job.id, job.reports_sent, job.checkpoint_dir), (None, 0, "checkpoints"))
                job.request_checkpoint()
                self.assertTrue(job.step())

    def test_the_import_has_no_effect_and_needs_no_package(self):
        code = ("import sys, threading, signal; before = signal.getsignal(signal.SIGTERM)\n"
                "t = threading.Thread(target=__import__, args=('wattle_job',)); t.start(); t.join()\n"
                "assert signal.getsignal(signal.SIGTERM) == before\n"
                "assert 'wattle_job' in sys.modules and 'torch' not in sys.modules\n")
        # -S: without site-packages.
        subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=FOLDER, timeout=DEADLINE_S)


class Sizes(unittest.TestCase):
    def test_of_each_starter(self):
        launcher = {"CUDA_VISIBLE_DEVICES": "2,3", "PET_NNODES": "2", "PET_NODE_RANK": "1",
                    "PET_NPROC_PER_NODE": "2", "NODE_RANK": "1"}
        torchrun = {**launcher, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                    "GROUP_RANK": "1"}
        srun = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_NODEID": "1", "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
        # gpus nodes gpus_here node_rank rank processes local_rank
        cases = [
            (launcher, (4, 2, 2, 1, 1, 2, 0)),
            (torchrun, (4, 2, 2, 1, 3, 4, 1)),
            (srun, (8, 2, 4, 1, 5, 8, 1)),
            ({}, (0, 1, 0, 0, 0, 1, 0)),
            ({"CUDA_VISIBLE_DEVICES": ""}, (0, 1, 0, 0, 0, 1, 0)),
            ({"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, (2, 1, 2, 0, 0, 1, 0)),
            ({"RANK": "x", "WORLD_SIZE": "-3", "PET_NNODES": "0", "SLURM_NNODES": "9" * 40}, (0, 1, 0, 0, 0, 1, 0)),
        ]
        for given, expected in cases:
            self.assertEqual(tuple(Size.of(given)), expected, given)

    def test_attempts(self):
        for text, expected in (("3", 3), ("", 1), ("0", 1), ("x", 1), ("9" * 30, 1)):
            with environment(WATTLE_ATTEMPT=text):
                self.assertEqual(wattle_job.Job().attempt, expected)


if __name__ == "__main__":
    unittest.main()
