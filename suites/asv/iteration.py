"""Time and memory of one iteration, of every algorithm on a piece of every suite."""

import time

from .cases import Case, algorithms, problems


class Iteration:
    """One step of a run that is two steps old."""

    params = (problems(), algorithms())
    param_names = ("problem", "algorithm")
    timeout = 300
    number = 1
    timer = time.process_time  # one thread: what others do on the machine does not count
    repeat = (3, 20, 2.0)
    warmup_time = 0
    rounds = 1

    def setup(self, problem, algorithm):
        self.step = Case(problem).begun(algorithm)

    def time_step(self, problem, algorithm):
        self.step()

    def peakmem_step(self, problem, algorithm):
        self.step()
