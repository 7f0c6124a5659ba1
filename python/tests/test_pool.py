"""The package against a pool: GPUPOOL_CONFIG names one of two nodes with two GPUs each, and PATH has gpupool's commands."""

import asyncio
import concurrent.futures
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import calls
import gpupool
from gpupool import _watch


def text_of(error: BaseException) -> str:
    return str(error)


class PoolTest(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")

    def watches_nothing(self) -> None:
        until = time.monotonic() + 10
        while _watch._watcher is not None and _watch._watcher.is_running:
            self.assertLess(time.monotonic(), until, "the thread that watches goes on without a job")
            time.sleep(0.01)


class Jobs(PoolTest):
    def test_a_job_is_submitted_and_waited_for(self) -> None:
        (self.folder / "job.sh").write_text("#!/bin/sh\necho $1 $CUDA_VISIBLE_DEVICES\nexit 7\n")
        job = gpupool.submit("job.sh", "said", gpus=1, time=datetime.timedelta(minutes=5), comment="of python", tag=["a", "b"])
        info = job.wait(30)
        self.assertEqual((info.state, info.exit_code, info.is_over, info.is_well, info.gpu_count), ("FAILED", 7, True, False, 1.0))
        self.assertEqual((info.raw["comment"], info.raw["tags"], info.raw["time_limit_secs"]), ("of python", ["a", "b"], 300))
        self.assertEqual(job.output(), "said 0\n")
        assert info.end_time and info.start_time and info.submit_time
        self.assertGreaterEqual(info.end_time, info.submit_time)
        with self.assertRaises(gpupool.JobError) as raised:
            job.wait(30, check=True)
        self.assertIn(f"job {job.id} ended: FAILED, exit code 7:0", text_of(raised.exception))
        self.assertIn("said 0", raised.exception.output)
        job.cancel()
        self.assertEqual(job.state, "FAILED", "it was over already")
        self.watches_nothing()

    def test_commands_and_texts_are_jobs_too(self) -> None:
        first = gpupool.submit(["sh", "-c", 'echo "$0"', "two words"], time=5)
        second = gpupool.submit(text="#!/bin/sh\n#GSUB -t 5 -J of-text\necho $1\n")
        self.assertEqual([info.state for info in gpupool.wait([first, second], 30)], ["COMPLETED", "COMPLETED"])
        self.assertEqual((first.output(), second.info().name), ("two words\n", "of-text"))

    def test_a_job_that_waits_says_why_and_is_cancelled(self) -> None:
        job = gpupool.submit(["true"], hold=True, time=5)
        self.assertEqual(job.state, "PENDING")
        self.assertIn("held", job.why())
        with self.assertRaises(TimeoutError):
            job.wait(0.3)
        end = job.future()
        job.cancel()
        self.assertEqual(end.result(30).state, "CANCELLED")

    def test_tasks_of_an_array_end_one_by_one(self) -> None:
        tasks = gpupool.submit_array("1-5:2,8%2", ["sh", "-c", "exit $SLURM_ARRAY_TASK_ID"], time=5)
        self.assertEqual([task.id.partition("_")[2] for task in tasks], ["1", "3", "5", "8"])
        ended = {task.id: info.exit_code for task, info in gpupool.as_completed(tasks, 30)}
        self.assertEqual(list(sorted(ended.values())), [1, 3, 5, 8])
        whole = gpupool.Job(tasks[0].id.partition("_")[0]).wait(30)
        self.assertEqual((whole.state, whole.shown_id), ("FAILED", tasks[0].id.partition("_")[0]))

    def test_tasks_that_are_cancelled_while_they_wait_end(self) -> None:
        tasks = gpupool.submit_array("0-9", ["true"], hold=True, time=5)
        futures = [task.future() for task in tasks]
        gpupool.cancel(tasks[2:4])
        self.assertEqual([futures[at].result(30).state for at in (2, 3)], ["CANCELLED"] * 2)
        self.assertFalse(futures[4].done())
        gpupool.cancel(tasks)
        self.assertEqual({future.result(30).state for future in futures}, {"CANCELLED"})

    def test_asyncio_awaits_jobs(self) -> None:
        async def both() -> list[gpupool.JobInfo]:
            jobs = [gpupool.submit(["sh", "-c", f"exit {code}"], time=5) for code in (0, 3)]

            async def end(job: gpupool.Job) -> gpupool.JobInfo:
                return await job

            return await asyncio.gather(*map(end, jobs))

        self.assertEqual([info.exit_code for info in asyncio.run(both())], [0, 3])

    def test_mistakes_come_with_the_commands_advice(self) -> None:
        with self.assertRaises(gpupool.GpupoolError) as raised:
            gpupool.submit(["true"], gpuss=3)
        self.assertIn("Did you mean --gpus?", text_of(raised.exception))
        with self.assertRaises(gpupool.GpupoolError) as raised:
            gpupool.submit(["true"], time=5, gpus=400)
        self.assertEqual(raised.exception.exit_code, 1)
        for wrong in (lambda: gpupool.submit(), lambda: gpupool.submit(["true"], wait=True), lambda: gpupool.submit("x", array="1-2")):
            self.assertRaises(TypeError, wrong)
        for bad in ("x", "-1", "17_", "17.0", "17 18"):
            self.assertRaises(ValueError, gpupool.Job, bad)
        with self.assertRaises(gpupool.GpupoolError) as raised:
            gpupool.Job(10**9).wait(30)
        self.assertIn("there is no job 1000000000", text_of(raised.exception))

    def test_listings_and_events_are_read(self) -> None:
        job = gpupool.submit(["true"], time=5, job_name="listed")
        job.wait(30)
        self.assertIn(job.id, [info.shown_id for info in gpupool.jobs(states="all")])
        [run] = [info for info in gpupool.runs(name="listed") if info.shown_id == job.id]
        self.assertEqual((run.state, run.raw["steps"][0]["name"]), ("COMPLETED", "batch"))
        self.assertEqual([node["name"] for node in gpupool.nodes()], ["node1", "node2"])
        kinds = [event["kind"] for event in gpupool.events(follow=False, job=job.id)]
        self.assertEqual(kinds, ["job_submitted", "job_started", "job_ended"])
        following = gpupool.events(job=job.id, after=0)
        self.assertEqual(next(following)["kind"], "job_submitted")
        following.close()  # type: ignore[attr-defined]
        self.assertEqual(gpupool.dry_run(["true"], gpus=1, time=5)["reason"], "")


class Calls(PoolTest):
    def test_calls_are_jobs_and_bring_results(self) -> None:
        with gpupool.Executor(time=5, gpus=1, folder=self.folder) as pool:
            future = pool.submit(calls.where, 1, b=2)
            said, gpu, job = future.result(30)
            self.assertEqual((said, gpu, job), (3, "0", future.job.id))
            self.assertEqual(list(pool.map(pow, [2, 3, 4], [5, 2, 1])), [32, 9, 4])
            self.assertEqual(list(pool.map(pow, range(5), [2] * 5, chunksize=2)), [0, 1, 4, 9, 16])
            self.assertEqual(list(pool.map(pow, [])), [])
        self.assertEqual(list(self.folder.iterdir()), [], "what ended well leaves nothing")
        self.assertRaises(RuntimeError, pool.submit, pow, 1, 1)

    def test_what_a_call_raises_is_raised_here(self) -> None:
        with gpupool.Executor(time=5, folder=self.folder) as pool:
            with self.assertRaises(calls.Refused) as raised:
                pool.submit(calls.refuse, "so").result(30)
            self.assertIn("in refuse", text_of(raised.exception.__cause__ or raised.exception))
            odd = pool.submit(calls.return_lock).exception(30)
            self.assertIn("cannot be pickled", str(odd))

    def test_a_job_that_is_killed_is_an_error_with_its_output(self) -> None:
        with gpupool.Executor(time=5, folder=self.folder) as pool:
            error = pool.submit(calls.die, signal.SIGKILL).exception(30)
        assert isinstance(error, gpupool.JobError)
        self.assertEqual((error.info.state, error.output), ("FAILED", "I was here"))
        self.assertIn(error.info.shown_id, str(error))

    def test_cancelling_a_call_cancels_its_job(self) -> None:
        with gpupool.Executor(time=5, folder=self.folder) as pool:
            future = pool.submit(time.sleep, 600)
            while future.job.state == "PENDING":
                time.sleep(0.05)
            self.assertTrue(future.cancel())
            self.assertEqual(future.job.wait(30).state, "CANCELLED")
            self.assertRaises(concurrent.futures.CancelledError, future.result, 1)
            left = [pool.submit(time.sleep, 600) for _ in range(3)]
            pool.shutdown(cancel_futures=True)
        self.assertEqual({info.state for info in gpupool.wait([one.job for one in left], 30)}, {"CANCELLED"})

    def test_asyncio_runs_calls(self) -> None:
        async def run() -> int:
            with gpupool.Executor(time=5, folder=self.folder) as pool:
                return await asyncio.get_running_loop().run_in_executor(pool, pow, 7, 2)

        self.assertEqual(asyncio.run(run()), 49)

    def test_functions_of_a_script_are_found_and_the_script_does_not_run_again(self) -> None:
        script = self.folder / "sweep.py"
        script.write_text(
            "import dataclasses, gpupool\n"
            "@dataclasses.dataclass\nclass Point:\n    x: int\n"
            "def double(point):\n    return Point(2 * point.x)\n"
            "if __name__ == '__main__':\n"
            "    with gpupool.Executor(time=5) as pool:\n"
            "        print(list(pool.map(double, [Point(1), Point(2)])), isinstance(pool.submit(double, Point(3)).result(), Point))\n"
        )
        said = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", timeout=60)
        self.assertEqual((said.stdout, said.stderr), ("[Point(x=2), Point(x=4)] True\n", ""))


if __name__ == "__main__":
    unittest.main()
