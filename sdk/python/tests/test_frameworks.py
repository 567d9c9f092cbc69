"""The hooks of frameworks with small models on the processor.

A framework that is not installed is skipped, and its files are compiled only; the reason states it.
"""

import importlib.util
import os
import py_compile
import signal
import subprocess
import sys
import tempfile
import unittest

from support import FOLDER, InJob

DEADLINE_S = 240
NEEDS = {
    "pytorch": (["torch"], ["wattle_job/pytorch.py", "examples/train_pytorch.py"]),
    "huggingface": (["torch", "transformers", "accelerate"],
                    ["wattle_job/huggingface.py", "examples/train_huggingface.py"]),
    "lightning": (["torch", "lightning"], ["wattle_job/lightning.py", "examples/train_lightning.py"]),
    "jax": (["jax"], ["examples/train_jax.py"]),
}


def missing(framework):
    return [name for name in NEEDS[framework][0] if importlib.util.find_spec(name) is None]


def compiles(framework):
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(NEEDS[framework][1]):
            py_compile.compile(os.path.join(FOLDER, path), os.path.join(folder, str(number)), doraise=True)


class Frameworks(InJob):
    def need(self, framework):
        compiles(framework)
        if missing(framework):
            self.skipTest("{} not installed: the hook is compiled and not run".format(", ".join(missing(framework))))

    def start(self, *command):
        return super().start(*command, stderr=subprocess.STDOUT, variables=dict(
            OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1",
            TRANSFORMERS_OFFLINE="1"))

    def first_step(self, process):
        """The first line with a completed step, while the process runs."""
        while True:
            for line in self.profiler.lines():
                if line["step"] > 0:
                    return line
            try:
                output = process.communicate(timeout=0.1)[0]
            except subprocess.TimeoutExpired:
                continue
            self.fail(output)

    def checkpoint_and_resume(self, *command, number=signal.SIGUSR1, code=0, expected=None):
        """Interrupts a run of very many steps, and completes it some steps later."""
        process = self.start(*command, "100000000")
        first = self.first_step(process)
        for key, value in (expected or {}).items():
            self.assertEqual(first.get(key), value, first)
        process.send_signal(number)
        output = process.communicate(timeout=DEADLINE_S)[0]
        self.assertEqual(process.returncode, code, output)
        self.assertNotIn("completed", output)
        step = [first, *self.profiler.lines()][-1]["step"]
        self.assertGreaterEqual(len(os.listdir(self.checkpoints)), 1, output)
        process = self.start(*command, str(step + 40))
        output = process.communicate(timeout=DEADLINE_S)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("completed", output)
        steps = [line["step"] for line in self.profiler.lines()]
        self.assertGreater(steps[0], step - 1, "it resumed: " + output)
        self.assertEqual(steps[-1], step + 40, output)
        return output

    def example(self, framework, *starter, **options):
        self.need(framework)
        path = os.path.join(FOLDER, "examples", "train_{}.py".format(framework))
        return self.checkpoint_and_resume(*(starter or (sys.executable,)), path, **options)

    def test_pytorch(self):
        expected = {"steps_per_epoch": 100, "steps_total": 100_000_000, "global_batch": 64}
        output = self.example("pytorch", expected=expected)
        self.assertIn("attempt 2, rank 0 of 1, from step", output)

    def test_pytorch_of_two_processes_by_torchrun(self):
        starter = [sys.executable, "-m", "wattle_job", "run", "--exit-code", "85", "--",
                   sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                   "--master-addr", "127.0.0.1", "--master-port", "0", "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", "127.0.0.1:0"]
        output = self.example("pytorch", *starter, code=85)
        self.assertIn("rank 1 of 2, from step", output)

    def test_huggingface(self):
        self.example("huggingface", expected={"steps_per_epoch": 100, "global_batch": 8})

    def test_lightning(self):
        self.example("lightning", expected={"steps_per_epoch": 100, "global_batch": 8})

    def test_lightning_on_term(self):
        self.example("lightning", number=signal.SIGTERM)

    def test_jax(self):
        self.example("jax")


if __name__ == "__main__":
    unittest.main()
