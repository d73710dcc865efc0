"""Processors that a process may use: its affinity, quotas of control groups, and what a batch system gave it."""

import math

import pytest

from smimbench.backend import machine

OWN = "/batch/job_1"
VERSION_1 = f"9:memory:/elsewhere\n4:cpu,cpuacct:{OWN}\n3:cpuset:/\n0::/\n"
VERSION_2 = f"0::{OWN}\n"


def control_groups(folder, version, quotas):
    """Files of control groups with these quotas by path, ``"150000 100000"``."""
    membership = folder / "cgroup"
    membership.write_text({1: VERSION_1, 2: VERSION_2}[version])
    for path, text in quotas.items():
        group = folder / "fs" / ("cpu" if version == 1 else "") / path.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        names = (
            ["cpu.max"] if version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        )
        for name, line in zip(
            names, [text] if version == 2 else text.split(), strict=True
        ):
            (group / name).write_text(f"{line}\n")
    return membership, folder / "fs"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quotas", "allowed"),
    [
        ({OWN: "150000 100000"}, 1.5),
        ({OWN: "UNLIMITED 100000"}, math.inf),
        (
            {
                OWN: "UNLIMITED 100000",
                "/batch": "400000 50000",
                "/": "UNLIMITED 100000",
            },
            8.0,
        ),
        ({OWN: "300000 100000", "/batch": "200000 100000"}, 2.0),
        ({"/": "50000 100000"}, 0.5),  # a container that sees its own group as the root
        ({}, math.inf),
    ],
)
def test_the_quota_of_a_control_group_and_of_those_above_it(
    tmp_path, version, quotas, allowed
):
    unlimited = "-1" if version == 1 else "max"
    quotas = {
        path: text.replace("UNLIMITED", unlimited) for path, text in quotas.items()
    }
    assert machine.cpu_quota(*control_groups(tmp_path, version, quotas)) == allowed


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert machine.cpu_quota(tmp_path / "nothing", tmp_path) == math.inf


@pytest.mark.parametrize(
    ("quota", "slurm", "cores"),
    [
        (math.inf, None, 4),
        (2.0, None, 2),
        (1.5, None, 2),
        (0.1, None, 1),
        (64.0, None, 4),
        (math.inf, "3", 3),
        (math.inf, "64", 4),
        (2.0, "3", 2),
        (3.0, "2", 2),
        (math.inf, "", 4),
        (math.inf, "two", 4),
        (math.inf, "0", 1),
    ],
)
def test_as_many_cells_at_a_time_as_processors_may_be_used(
    monkeypatch, quota, slurm, cores
):
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda process: {0, 1, 4, 5}, raising=False
    )
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if slurm is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    assert machine.usable_cores() == cores
