"""Time and memory of one iteration, of every algorithm on a piece of every suite."""

from .cases import Case, Timed, algorithms, problems


class Iteration(Timed):
    """One step of a run that is two steps old."""

    params = (problems(), algorithms())
    param_names = ("problem", "algorithm")
    timeout = 300
    repeat = (3, 20, 2.0)

    def setup(self, problem, algorithm):
        self.step = Case(problem).begun(algorithm)

    def time_step(self, problem, algorithm):
        self.step()

    def peakmem_step(self, problem, algorithm):
        self.step()
