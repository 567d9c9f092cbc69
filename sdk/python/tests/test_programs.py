"""`python3 -m wattle_job` and the examples that need no framework, as processes in a job."""

import os
import signal
import subprocess
import sys
import unittest

from support import DEADLINE_S, FOLDER, InJob, until

# Starts a worker as torchrun does: itself without a handler, so the signal would end it.
STARTER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
WORKER = """
import wattle_job
with wattle_job.Job(report_every_s=0.01) as job:
    while not job.step():
        sum(range(2000))
"""
UNAWARE = "import select; print('runs', flush=True); select.select([], [], [])"


class Programs(InJob):
    def start(self, *command, **options):
        return super().start(*command, stderr=subprocess.PIPE, **options)

    def module(self, *arguments, **options):
        return self.start(sys.executable, "-m", "wattle_job", *arguments, **options)

    def until_step(self, least):
        line = self.profiler.next()
        while line["step"] < least:
            line = self.profiler.next()
        return line

    def test_run_passes_the_signal_to_workers_only(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            self.profiler.lines()  # of the process before
            starter = [sys.executable, "-c", STARTER, WORKER]
            process = self.module("run", "--exit-code", "85", "--", *starter)
            self.until_step(2)
            process.send_signal(number)
            output = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 85, output)

    def test_run_reaches_a_worker_that_still_starts(self):
        late = "import os, select\nopen('here', 'w').close()\nwhile not os.path.exists('go'): select.select([], [], [], 0.01)\n"
        process = self.module("run", "--exit-code", "85", "--", sys.executable, "-c", STARTER, late + WORKER)
        until("it has started", lambda: os.path.exists(os.path.join(self.folder.name, "here")))
        process.send_signal(signal.SIGUSR1)
        open(os.path.join(self.folder.name, "go"), "w").close()
        output = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 85, output)

    def test_run_ends_an_unaware_program_on_term_only(self):
        process = self.module("run", "--exit-code", "85", "--", sys.executable, "-c", UNAWARE)
        self.assertEqual(process.stdout.readline(), "runs\n")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_run_returns_the_exit_code_and_names_errors(self):
        for code in (0, 3):
            process = self.module("run", "--exit-code", "85", "--", sys.executable, "-c", "exit({})".format(code))
            process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, code)
        process = self.module("run", "--", "no-such-program")
        self.assertIn("no-such-program", process.communicate(timeout=DEADLINE_S)[1])
        self.assertEqual(process.returncode, 127)
        for wrong in (["run"], ["run", "--signal", "NONE", "--", "true"], ["run", "--exit-code", "256", "--", "true"]):
            process = self.module(*wrong)
            self.assertIn("error", process.communicate(timeout=DEADLINE_S)[1])
            self.assertEqual(process.returncode, 2, wrong)

    def test_relay_reports_lines_and_ignores_others(self):
        process = self.module("relay", "--steps-total", "90", stdin=subprocess.PIPE)
        text = "\nloss=0.3\nhello\n12\nstep=x\nstep=-4\nstep=13 epoch=1 global_batch=8 loss=0.2\n" + "9" * 300 + "\n"
        process.communicate(text, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0)
        lines = self.profiler.lines()
        self.assertEqual(lines[0], {"job": "train-7", "step": 12, "steps_total": 90})
        self.assertEqual(lines[-1], {"job": "train-7", "step": 13, "epoch": 1, "steps_total": 90, "global_batch": 8})

    def test_show_prints_what_was_granted(self):
        output = self.module("show").communicate(timeout=DEADLINE_S)[0]
        self.assertIn("train-7", output)
        self.assertIn("a profiler listens", output)
        self.assertEqual(self.profiler.lines(), [])

    def checkpoint_and_resume(self, *command):
        """Interrupts a run of very many steps, and completes it a few steps later."""
        process = self.start(*command, str(10 ** 9))
        first = self.until_step(2)
        process.send_signal(signal.SIGUSR1)
        output, error = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, error)
        step = [first, *self.profiler.lines()][-1]["step"]
        self.assertNotIn("completed", output)
        self.assertEqual(len(os.listdir(self.checkpoints)), 1)
        process = self.start(*command, str(step + 60))
        output, error = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, error)
        self.assertIn("from step {}".format(step), output)
        self.assertIn("completed", output)
        self.assertEqual(self.profiler.lines()[-1]["step"], step + 60)

    def test_the_example_in_python(self):
        self.checkpoint_and_resume(sys.executable, os.path.join(FOLDER, "examples", "loop.py"))

    def test_the_example_in_bash(self):
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        self.checkpoint_and_resume("bash", os.path.join(FOLDER, "examples", "train.sh"))


if __name__ == "__main__":
    unittest.main()
